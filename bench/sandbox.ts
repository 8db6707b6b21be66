import { join } from 'node:path';
import type { Environment } from '../test/helpers/daemon.ts';
import { Stack } from '../test/helpers/stack.ts';
import { BareQemu } from './bare-qemu.ts';
import { readFlags } from './flags.ts';
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
const NUMBERS = { rounds: 20, fleet: 20, burst: 50, prewarmed: 2 } as const;

/** `npm run bench -- sandbox`: see docs/benchmarks.md. */
export async function benchSandbox(args: readonly string[]): Promise<void> {
  const known = { ...NUMBERS, cold: false, accelerator: ['tcg', 'kvm'] } as const;
  const names = Object.keys(parts);
  const usual = args.includes('--cold') ? COLD_PARTS : names.filter((name) => name !== 'floor');
  const { accelerator, only, cold: isCold, ...sizes } = readFlags(args, known, names, usual);
  const { GUEST_DIR: guestDir = '', DEFAULT_ROOT_DISK: rootDisk = '' } = process.env;
  await using stack = await Stack.start({
    ...CAPACITY,
    GUEST_DIR: guestDir,
    DEFAULT_ROOT_DISK: rootDisk,
    SANDBOX_ACCELERATOR: accelerator,
    SANDBOX_TEMPLATES: isCold ? 'off' : 'on',
    SANDBOX_PREWARMED: String(sizes.prewarmed),
  });
  const memSizeMib = isCold ? MEM_SIZE_MIB.cold : MEM_SIZE_MIB.usual;
  const directory = join(stack.directory, 'bare');
  const machine = { guestDir, rootDisk, accelerator, memSizeMib, directory };
  await using bare = await BareQemu.prepare(machine);
  const calls = new SandboxCalls(await stack.newClient());
  const bench: SandboxBench = { ...sizes, isCold, stack, calls, bare, memSizeMib, rootDisk };
  await makeTemplate(bench, memSizeMib);
  for (const name of only) await parts[name]?.(bench);
}
