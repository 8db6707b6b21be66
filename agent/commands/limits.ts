import assert from 'node:assert';
import { LIMITS } from '../../shared/limits.ts';
import { SCHEMA_LIMITS } from '../../shared/schemas/limits.ts';
import { MiB } from '../../shared/units.ts';

/** Limits of commands and searches on disks. */
export const COMMAND_LIMITS = {
  // A command that would probably wait longer than this for its turn is refused; see FairTurns.
  execWaitMsMax: 30_000,
  execsWaitingMax: 1000,
  execsWaitingPerAccountMax: 500,

  // All matches of an answer, as JSON. The agent has several copies of them in memory.
  grepMatchesBytesMax: 8 * MiB,
} as const;

assert(COMMAND_LIMITS.execsWaitingPerAccountMax < COMMAND_LIMITS.execsWaitingMax);
assert(SCHEMA_LIMITS.outputBytesPerStreamMax * 2 < LIMITS.linkFrameBytesMax);
assert(COMMAND_LIMITS.grepMatchesBytesMax < LIMITS.linkFrameBytesMax);
