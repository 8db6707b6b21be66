import assert from 'node:assert';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { readEnvFile } from '../scripts/env-file.ts';
import { paths } from '../scripts/local-paths.ts';
import type { Environment } from '../test/helpers/daemon.ts';
import { Stack } from '../test/helpers/stack.ts';
import { type Accelerator, BareQemu } from './bare-qemu.ts';
import { makeTemplate, type SandboxBench } from './sandbox-bench.ts';
import { benchBurst } from './sandbox-burst.ts';
import { SandboxCalls } from './sandbox-calls.ts';
import { benchExec } from './sandbox-exec.ts';
import { benchFloor } from './sandbox-floor.ts';
import { benchFork } from './sandbox-fork.ts';
import { benchGuestAgent, benchMemory } from './sandbox-memory.ts';
import { benchDirtyPause, benchPause } from './sandbox-pause.ts';
import { benchStart } from './sandbox-start.ts';

const MEM_SIZE_MIB = { usual: 2048, cold: 256 } as const;
/** More than the host has: most of these sandboxes use little of their memory. */
const CAPACITY: Environment = { SANDBOX_MEMORY_MIB: '262144', SANDBOX_VCPUS: '1024' };

const parts: Readonly<Record<string, (bench: SandboxBench) => Promise<void>>> = {
  create: benchStart,
  exec: benchExec,
  pause: benchPause,
  dirty: benchDirtyPause,
  fork: benchFork,
  memory: benchMemory,
  burst: benchBurst,
  floor: benchFloor,
  guest: benchGuestAgent,
};
/** The parts that make sense when machines boot instead of starting from a template. */
const COLD_PARTS = ['create', 'guest'];
/** The parts that run only when they are named, since they need flags of their own. */
const NAMED_PARTS: ReadonlySet<string> = new Set(['floor']);

interface Flags extends Pick<SandboxBench, 'rounds' | 'fleet' | 'burst' | 'prewarmed' | 'isCold'> {
  readonly accelerator: Accelerator;
  readonly only: readonly string[];
}

function readFlags(args: readonly string[]): Flags {
  const { values } = parseArgs({
    args: [...args],
    options: {
      rounds: { type: 'string', default: '20' },
      fleet: { type: 'string', default: '20' },
      burst: { type: 'string', default: '50' },
      prewarmed: { type: 'string', default: '2' },
      accelerator: { type: 'string', default: 'tcg' },
      only: { type: 'string' },
      cold: { type: 'boolean', default: false },
    },
  });
  const number = (name: 'rounds' | 'fleet' | 'burst' | 'prewarmed', min: number): number => {
    const value = Number(values[name]);
    assert(Number.isInteger(value) && value >= min, `--${name}: a number from ${min} on`);
    return value;
  };
  const { accelerator, cold: isCold } = values;
  assert(accelerator === 'tcg' || accelerator === 'kvm', '--accelerator: tcg or kvm');
  const usual = Object.keys(parts).filter((name) => !NAMED_PARTS.has(name));
  const only = values.only?.split(',') ?? (isCold ? COLD_PARTS : usual);
  const unknown = only.filter((name) => !Object.hasOwn(parts, name));
  assert.deepEqual(unknown, [], `--only: some of ${Object.keys(parts).join(',')}`);
  const numbers = { rounds: number('rounds', 1), fleet: number('fleet', 2) };
  const sizes = { burst: number('burst', 1), prewarmed: number('prewarmed', 0) };
  return { ...numbers, ...sizes, accelerator, isCold, only };
}

/**
 * Aborts on the first signal, so that the benchmark ends in order. A second one ends it at once.
 */
function interruption(): AbortSignal {
  const controller = new AbortController();
  const stop = (): void => controller.abort(new Error('interrupted'));
  for (const name of ['SIGINT', 'SIGTERM'] as const) process.once(name, stop);
  return controller.signal;
}

export async function findGuest(): Promise<{ guestDir: string; rootDisk: string }> {
  const known = { ...(await readEnvFile(paths.config)), ...process.env };
  const { GUEST_DIR: guestDir, DEFAULT_ROOT_DISK: rootDisk } = known;
  assert(
    guestDir !== undefined && rootDisk !== undefined,
    'there is no guest: run ./scripts/setup',
  );
  return { guestDir, rootDisk };
}

/**
 * `npm run bench -- sandbox [--rounds N] [--only create,pause,…] [--fleet N] [--burst N]
 * [--prewarmed N] [--cold] [--accelerator tcg|kvm]`: see docs/benchmarks.md.
 */
export async function benchSandbox(args: readonly string[]): Promise<void> {
  const { accelerator, only, ...sizes } = readFlags(args);
  const signal = interruption();
  const { guestDir, rootDisk } = await findGuest();
  const settings: Environment = {
    ...CAPACITY,
    GUEST_DIR: guestDir,
    DEFAULT_ROOT_DISK: rootDisk,
    SANDBOX_ACCELERATOR: accelerator,
    SANDBOX_TEMPLATES: sizes.isCold ? 'off' : 'on',
    SANDBOX_PREWARMED: String(sizes.prewarmed),
  };
  const memSizeMib = sizes.isCold ? MEM_SIZE_MIB.cold : MEM_SIZE_MIB.usual;
  const stack = await Stack.start(settings, [], true);
  try {
    const directory = join(stack.directory, 'bare');
    const machine = { guestDir, rootDisk, accelerator, memSizeMib, directory };
    await using bare = await BareQemu.prepare(machine);
    const calls = new SandboxCalls(await stack.newClient(), signal);
    const bench: SandboxBench = { ...sizes, stack, calls, bare, memSizeMib, rootDisk, signal };
    await makeTemplate(bench, memSizeMib);
    for (const name of only) await parts[name]?.(bench);
  } finally {
    await stack.stop();
  }
}
