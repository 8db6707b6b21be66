import { stat } from 'node:fs/promises';
import { constants } from 'node:os';
import { join } from 'node:path';
import Type from 'typebox';
import { compile } from '../../../shared/validate.ts';
import { writeDurably } from '../../system/write-durably.ts';
import type { MachineEnd } from '../driver.ts';
import { type MachineExit, readConsole, readExit, runPaths } from './shim-files.ts';
import { readRecord } from '../../system/read-record.ts';

const CONSOLE_LENGTH_MAX = 600;
const SIGKILL = constants.signals.SIGKILL;

/** Since the epoch, by the host's clock. */
const endedAtMs = Type.Integer();
/**
 * The cause of an end, recorded before QEMU ends: the guest's own doing, a state that QEMU cannot
 * leave, or a kill by the host.
 */
const FirstCause = Type.Union([
  Type.Object({ reason: Type.Enum(['guest_shutdown', 'guest_panic']), endedAtMs }),
  Type.Object({ reason: Type.Literal('vmm_crashed'), state: Type.String(), endedAtMs }),
  Type.Object({ reason: Type.Literal('killed_by_host'), message: Type.String() }),
]);
type FirstCause = Type.Static<typeof FirstCause>;
/** How a machine ended by itself, as QEMU reported it. */
export type Observed =
  | { readonly reason: 'guest_shutdown' | 'guest_panic' }
  | { readonly reason: 'vmm_crashed'; readonly state: string };

/**
 * A requested stop. `forcedAfterMs` is set once the grace time is over and the machine was killed.
 */
export interface StopRequest {
  readonly forcedAfterMs?: number;
}

const NAME = 'end.json';
const parse = compile(FirstCause);

/**
 * Records why the machine ended, before QEMU is told to quit, which leaves no trace of the reason.
 * @param wasConnected whether the agent saw the end; false: it came while no agent was connected
 */
export async function recordObserved(
  runDir: string,
  observed: Observed,
  { wasConnected }: { wasConnected: boolean },
): Promise<void> {
  const at = wasConnected ? Date.now() : await lastWordsAt(runDir);
  await writeDurably(runDir, NAME, JSON.stringify({ ...observed, endedAtMs: at }));
}

/**
 * When a guest ended while no agent was connected. QEMU keeps the stopped machine but reports no
 * time. The last thing that a kernel does, however, is to print that it powers off, restarts or has
 * panicked, and the shim logs that at once.
 */
async function lastWordsAt(runDir: string): Promise<number> {
  const log = await stat(runPaths(runDir).console).catch(() => undefined);
  return Math.round(log?.mtimeMs ?? Date.now());
}

/** Records that the host kills the machine, unless its guest has ended by itself. */
export async function recordKill(runDir: string, message: string): Promise<void> {
  if ((await readFirstCause(runDir)) !== undefined) return;
  await writeDurably(runDir, NAME, JSON.stringify({ reason: 'killed_by_host', message }));
}

const readFirstCause = (runDir: string): Promise<FirstCause | undefined> =>
  readRecord(join(runDir, NAME), parse);

const signalName = (number: number): string =>
  Object.entries(constants.signals).find(([, value]) => value === number)?.[0] ??
  `signal ${number}`;

/** How the ends of machines of one kind are told apart, and what they are called in messages. */
export interface MachineKind {
  readonly noun: string;
  /** Its first process ends with 0 when the guest shut down; otherwise nobody knows from that. */
  readonly exitTellsShutdown: boolean;
}

function describeExit({ code, signal, oomKills }: MachineExit, noun: string): MachineEnd {
  if (signal === SIGKILL && oomKills > 0) {
    const message = `the ${noun} was killed because its memory limit was reached`;
    return { reason: 'out_of_memory', message };
  }
  const how = signal === undefined ? `exit code ${code ?? 'unknown'}` : signalName(signal);
  return { reason: 'vmm_crashed', message: `the ${noun}'s process ended with ${how}` };
}

function withoutExit(noun: string): MachineEnd {
  const message = `the ${noun}'s process and its shim have both ended`;
  return { reason: 'vmm_crashed', message };
}

/** The first cause counts: the recorded one, then the requested stop, then QEMU's exit. */
function causeOf(
  recorded: FirstCause | undefined,
  stop: StopRequest | undefined,
  exit: MachineExit | undefined,
  { noun, exitTellsShutdown }: MachineKind,
): MachineEnd {
  if (recorded?.reason === 'killed_by_host') return recorded;
  if (recorded?.reason === 'vmm_crashed') {
    const message = `the ${noun} stopped in QEMU's state ${recorded.state}`;
    return { reason: recorded.reason, message };
  }
  if (recorded?.reason === 'guest_panic') {
    return { reason: recorded.reason, message: "the guest's kernel failed" };
  }
  if (recorded?.reason === 'guest_shutdown' || (exitTellsShutdown && exit?.code === 0)) {
    return stop === undefined
      ? { reason: 'guest_shutdown', message: 'the guest shut down by itself' }
      : { reason: 'stopped', message: 'the guest shut down as asked' };
  }
  if (stop?.forcedAfterMs !== undefined) {
    const message = `the guest did not shut down within ${stop.forcedAfterMs} ms and was killed`;
    return { reason: 'stop_forced', message };
  }
  return exit === undefined ? withoutExit(noun) : describeExit(exit, noun);
}

/**
 * The line in which a kernel says why it panicked, or QEMU why it cannot continue, with the lines
 * after it; or else the last lines of the console log.
 */
async function excerptOf(runDir: string, reason: MachineEnd['reason']): Promise<string> {
  const lines = await readConsole(runDir);
  const fault = lines.findLastIndex((line) => line.includes('internal error'));
  if (reason === 'vmm_crashed' && fault >= 0) {
    return lines.slice(fault).join(' | ').slice(0, CONSOLE_LENGTH_MAX);
  }
  const panic = lines.findLast((line) => line.includes('Kernel panic'));
  if (reason === 'guest_panic' && panic !== undefined) return panic.slice(0, CONSOLE_LENGTH_MAX);
  return lines.join(' | ').slice(-CONSOLE_LENGTH_MAX);
}

/**
 * Finds out how a machine ended of which nothing runs any more.
 * @param stop the stop that this agent requested, if it did
 */
export async function readEnd(
  runDir: string,
  stop: StopRequest | undefined,
  kind: MachineKind,
): Promise<MachineEnd> {
  const [recorded, exit] = await Promise.all([readFirstCause(runDir), readExit(runDir)]);
  const { reason, message } = causeOf(recorded, stop, exit, kind);
  const guestEndedAt = recorded?.reason === 'killed_by_host' ? undefined : recorded?.endedAtMs;
  const endedAt = guestEndedAt ?? exit?.endedAtMs;
  const end = { reason, message, ...(endedAt === undefined ? {} : { endedAt }) };
  if (reason !== 'vmm_crashed' && reason !== 'guest_panic') return end;
  const printed = await excerptOf(runDir, reason);
  return { ...end, message: printed === '' ? message : `${message}: ${printed}` };
}

/** Whether the cause of the end or QEMU's exit was recorded. */
export const isEndKnown = async (runDir: string): Promise<boolean> =>
  (await readFirstCause(runDir)) !== undefined || (await readExit(runDir)) !== undefined;
