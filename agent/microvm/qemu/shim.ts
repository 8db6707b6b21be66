import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import Type from 'typebox';
import { errnoOf } from '../../../shared/errors.ts';
import { compile } from '../../../shared/validate.ts';
import { shimPath } from '../../native/native.ts';
import { started } from '../../system/started.ts';
import type { MachineGroups } from './vm-cgroup.ts';
import { parseJson } from '../../../shared/json.ts';

const START_MS_MAX = 30_000;
const REPORT_BYTES_MAX = 4096;
const LOG_TAIL_BYTES = 32 * 1024;

/** How the shim confines and runs a program; see shim.c. */
export interface ShimSpec {
  /** Directory for sockets, log and records of the machine; must exist. */
  readonly runDir: string;
  readonly guestDir: string;
  readonly disk: { readonly directory: string; readonly base: string } | undefined;
  readonly network: { readonly namespace: string; readonly tap: string } | undefined;
  readonly uid: number;
  /** Largest size of a file that the program writes. */
  readonly fileBytesMax: number;
  readonly withKvm: boolean;
  /** A library to preload into QEMU. */
  readonly preload: string | undefined;
  readonly groups: MachineGroups;
  /** Descriptors of this process that QEMU inherits, numbered from {@link QEMU_FD.passed}. */
  readonly passed: readonly number[];
  readonly program: string;
  readonly args: readonly string[];
}

const Process = Type.Object({ pid: Type.Integer({ minimum: 1 }), startTime: Type.String() });
const Identity = Type.Object({ hostBootId: Type.String(), machine: Process, keeper: Process });
/** The processes of a machine, as its shim recorded them. */
export type MachineIdentity = Type.Static<typeof Identity>;

const Exit = Type.Object({
  code: Type.Optional(Type.Integer()),
  signal: Type.Optional(Type.Integer()),
  oomKills: Type.Integer(),
  endedAtMs: Type.Integer(), // Since the epoch, by the host's clock.
});
/** How QEMU ended. */
export type MachineExit = Type.Static<typeof Exit>;

export const runPaths = (runDir: string) =>
  ({
    monitor: join(runDir, 'monitor'),
    guest: join(runDir, 'guest'),
    identity: join(runDir, 'machine.json'),
    exit: join(runDir, 'exit.json'),
    console: join(runDir, 'console.log'),
  }) as const;

function argumentsOf(spec: ShimSpec): string[] {
  const { runDir, guestDir, disk, network, groups } = spec;
  return [
    ...['--run', runDir, '--guest', guestDir, '--uid', String(spec.uid)],
    ...['--file-bytes', String(spec.fileBytesMax)],
    ...(disk === undefined ? [] : ['--disks', disk.directory, '--base', disk.base]),
    ...(network === undefined
      ? []
      : ['--network', `/run/netns/${network.namespace}`, '--tap', network.tap]),
    ...(spec.preload === undefined ? [] : ['--preload', spec.preload]),
    ...groups.keeperFiles.flatMap((file) => ['--keeper-group', file]),
    ...groups.machineFiles.flatMap((file) => ['--machine-group', file]),
    ...['--oom-counter', groups.oomCounter],
    ...['--passed', String(spec.passed.length), '--kvm', spec.withKvm ? '1' : '0'],
    ...['--', spec.program, ...spec.args],
  ];
}

async function readReport(pipe: Readable): Promise<string> {
  let report = '';
  for await (const chunk of pipe.setEncoding('utf8')) {
    report += String(chunk);
    if (report.length > REPORT_BYTES_MAX) break;
  }
  return report.trim();
}

/**
 * Starts the shim and, in its confinement, QEMU; both outlive this process. Resolves once QEMU was
 * executed, which does not mean that QEMU accepts its arguments.
 * @throws Error naming the step at which the shim failed; nothing runs then
 */
export async function startShim(spec: ShimSpec): Promise<void> {
  // Descriptor 3 is the shim's report; 4 to 9 stay unused, and the passed descriptors follow.
  const nothing = Array.from({ length: 6 }, () => 'ignore' as const);
  const shim = await started(
    spawn(shimPath, argumentsOf(spec), {
      stdio: ['ignore', 'ignore', 'ignore', 'pipe', ...nothing, ...spec.passed],
      detached: true,
      env: {},
    }),
  );
  const exited = once(shim, 'exit');
  exited.catch(() => undefined);
  const pipe = shim.stdio[3] as Readable;
  const timer = setTimeout(() => shim.kill('SIGKILL'), START_MS_MAX);
  try {
    const report = await readReport(pipe);
    if (report !== 'ok') {
      await exited;
      throw new Error(`the machine was not started: ${report === '' ? 'killed' : report}`);
    }
  } finally {
    clearTimeout(timer);
    pipe.destroy();
    shim.unref();
  }
}

const parseIdentity = compile(Identity);
const parseExit = compile(Exit);

async function readJson<T>(
  path: string,
  parse: (input: unknown, where: string) => T,
): Promise<T | undefined> {
  try {
    return parse(parseJson(await readFile(path, 'utf8')), path);
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return undefined;
    throw error;
  }
}

export const readIdentity = (runDir: string): Promise<MachineIdentity | undefined> =>
  readJson(runPaths(runDir).identity, parseIdentity);

/**
 * How QEMU ended; undefined while it runs, or when the shim was killed before it could record it.
 */
export const readExit = (runDir: string): Promise<MachineExit | undefined> =>
  readJson(runPaths(runDir).exit, parseExit);

/** The last lines that the guest's kernel and QEMU printed, reduced to printable ASCII. */
export async function readConsole(runDir: string): Promise<string[]> {
  const log = await readFile(runPaths(runDir).console).catch(() => Buffer.alloc(0));
  const tail = log.subarray(-LOG_TAIL_BYTES).toString('latin1');
  const lines = tail.split(/[\r\n]+/u).map((line) => line.replaceAll(/[^ -~]/gu, '').trim());
  return lines.filter(Boolean);
}
