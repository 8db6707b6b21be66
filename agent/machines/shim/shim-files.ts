import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import Type from 'typebox';
import { compile } from '../../../shared/validate.ts';
import { readRecord } from '../../system/read-record.ts';

/* Reads the records of a shim in its machine's run directory (agent/native/common/shim-files.c). */

const LOG_TAIL_BYTES = 32 * 1024;

const Process = Type.Object({ pid: Type.Integer({ minimum: 1 }), startTime: Type.String() });
const Identity = Type.Object({ hostBootId: Type.String(), machine: Process, keeper: Process });
/** Which processes a machine is, as its shim wrote it. */
export type MachineIdentity = Type.Static<typeof Identity>;

const Exit = Type.Object({
  code: Type.Optional(Type.Integer()),
  signal: Type.Optional(Type.Integer()),
  oomKills: Type.Integer(),
  endedAtMs: Type.Integer(), // Since the epoch, by the host's clock.
});
/** How the machine's first process ended. */
export type MachineExit = Type.Static<typeof Exit>;

export const runPaths = (runDir: string) =>
  ({
    monitor: join(runDir, 'monitor'),
    guest: join(runDir, 'guest'),
    identity: join(runDir, 'machine.json'),
    exit: join(runDir, 'exit.json'),
    console: join(runDir, 'console.log'),
  }) as const;

const parseIdentity = compile(Identity);
const parseExit = compile(Exit);

export const readIdentity = (runDir: string): Promise<MachineIdentity | undefined> =>
  readRecord(runPaths(runDir).identity, parseIdentity);

/** Undefined while it runs, and when nobody was there to see its end. */
export const readExit = (runDir: string): Promise<MachineExit | undefined> =>
  readRecord(runPaths(runDir).exit, parseExit);

/** The last lines that the machine printed, fit for a message. */
export async function readConsole(runDir: string): Promise<string[]> {
  const log = await readFile(runPaths(runDir).console).catch(() => Buffer.alloc(0));
  const tail = log.subarray(-LOG_TAIL_BYTES).toString('latin1');
  const lines = tail.split(/[\r\n]+/u).map((line) => line.replaceAll(/[^ -~]/gu, '').trim());
  return lines.filter(Boolean);
}
