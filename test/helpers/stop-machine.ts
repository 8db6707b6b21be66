import { fail } from 'node:assert';
import { execFile } from 'node:child_process';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { hostArchitecture } from '../../agent/machines/qemu/process/launch.ts';
import { qemuProgram } from '../../agent/machines/qemu/process/qemu-arguments.ts';
import { run } from '../../agent/system/spawn.ts';
import { MiB } from '../../shared/units.ts';

const source = join(import.meta.dirname, '../fixtures/stop-machine.c');
/** QEMU's names of run states, in the order of their numbers (qapi/run-state.json). */
const STATES = [
  ...['debug', 'inmigrate', 'internal-error', 'io-error', 'paused', 'postmigrate', 'prelaunch'],
  ...['finish-migrate', 'restore-vm', 'running', 'save-vm', 'shutdown', 'suspended', 'watchdog'],
  ...['guest-panicked', 'colo'],
];

async function symbolsOf(program: string): Promise<Map<string, bigint>> {
  const args = ['--dynamic', '--defined-only', program];
  const { stdout } = await promisify(execFile)('nm', args, { maxBuffer: 16 * MiB });
  const lines = stdout.split('\n').map((line) => line.split(' '));
  return new Map(lines.map(([address = '', , name = '']) => [name, BigInt(`0x0${address}`)]));
}

/** Where the program is loaded in a process. */
async function baseOf(pid: number, program: string): Promise<bigint> {
  const maps = (await readFile(`/proc/${pid}/maps`, 'utf8')).split('\n');
  const first = maps.find((line) => line.endsWith(program)) ?? '';
  return BigInt(`0x${first.split('-')[0]}`);
}

/** Has a QEMU of this host's processor stop in a run state, printing a line as it does. */
export async function stopMachineIn(state: string, pid: number, line: string): Promise<void> {
  const program = qemuProgram(hostArchitecture);
  const [symbols, base] = [await symbolsOf(program), await baseOf(pid, program)];
  const addressOf = (name: string): string =>
    String(base + (symbols.get(name) ?? fail(`${program} has no ${name}`)));
  const directory = await mkdtemp(join(tmpdir(), 'berth-test-'));
  try {
    const built = join(directory, 'stop-machine');
    await run('cc', ['-std=gnu11', '-O1', '-Wall', '-Wextra', '-Werror', '-o', built, source]);
    const functions = ['error_printf', 'qemu_system_vmstop_request'].map(addressOf);
    await run(built, [String(pid), ...functions, String(STATES.indexOf(state)), `${line}\n`]);
  } finally {
    await rm(directory, { recursive: true, force: true });
  }
}
