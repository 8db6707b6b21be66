import assert from 'node:assert';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { readEnvFile } from '../scripts/env-file.ts';
import { paths } from '../scripts/local-paths.ts';
import { Stack } from '../test/helpers/stack.ts';
import { type Accelerator, BareQemu, type BareTimes } from './bare-qemu.ts';
import { SandboxCalls } from './sandbox-calls.ts';
import { median, printComparison } from './statistics.ts';

const MEM_SIZE_MIB = 256;
const WARM_UP_ROUNDS = 2;

interface Flags {
  readonly rounds: number;
  readonly fleet: number;
  readonly accelerator: Accelerator;
}

function readFlags(args: readonly string[]): Flags {
  const { values } = parseArgs({
    args: [...args],
    options: {
      rounds: { type: 'string', default: '15' },
      fleet: { type: 'string', default: '20' },
      accelerator: { type: 'string', default: 'tcg' },
    },
  });
  const [rounds, fleet] = [Number(values.rounds), Number(values.fleet)];
  assert(Number.isInteger(rounds) && rounds >= 1, '--rounds: a number from 1 on');
  assert(Number.isInteger(fleet) && fleet >= 0, '--fleet: a number; 0 leaves it out');
  const { accelerator } = values;
  assert(accelerator === 'tcg' || accelerator === 'kvm', '--accelerator: tcg or kvm');
  return { rounds, fleet, accelerator };
}

/** From the request for a sandbox to the answers, over the HTTP API. */
async function startOnce(calls: SandboxCalls): Promise<BareTimes> {
  const beganAt = performance.now();
  const id = await calls.createRunning(MEM_SIZE_MIB);
  const runningMs = performance.now() - beganAt;
  assert.equal(await calls.output(id, 'echo ready'), 'ready\n');
  const outputMs = performance.now() - beganAt;
  await calls.remove(id);
  return { runningMs, outputMs };
}

async function benchStart(calls: SandboxCalls, bare: BareQemu, rounds: number): Promise<void> {
  for (let round = 0; round < WARM_UP_ROUNDS; round += 1) {
    await startOnce(calls);
    await bare.run();
  }
  const ours: BareTimes[] = [];
  const baseline: BareTimes[] = [];
  for (let round = 0; round < rounds; round += 1) {
    ours.push(await startOnce(calls));
    baseline.push(await bare.run());
  }
  const names = { ours: 'HTTP', baseline: 'bare QEMU' };
  const options = { unit: 'ms', target: '≤ 1.15' };
  const rows = [
    { title: 'create to running', key: 'runningMs', baseline: 'to the guest agent’s welcome' },
    { title: 'create to first output', key: 'outputMs', baseline: 'to the output of `echo`' },
  ] as const;
  for (const { title, key, baseline: until } of rows) {
    const times = {
      ours: ours.map((each) => each[key]),
      baseline: baseline.map((each) => each[key]),
    };
    const heading = `${title}, 256 MiB, ${rounds} alternating rounds; bare: ${until}`;
    printComparison(heading, times, names, options);
  }
}

async function benchGuestAgent(calls: SandboxCalls): Promise<void> {
  const id = await calls.createRunning(MEM_SIZE_MIB);
  const status = await calls.output(id, 'cat /proc/1/status');
  const figure = (name: string): string => {
    const kib = Number(new RegExp(`^${name}:\\s+(\\d+) kB$`, 'mu').exec(status)?.[1]);
    return `${(kib / 1024).toFixed(2)} MiB`;
  };
  await calls.remove(id);
  process.stdout.write(
    `guest agent, resident in a guest of 256 MiB\n` +
      `  ${figure('VmRSS')} now, ${figure('VmHWM')} at most (target ≤ 2 MiB)\n\n`,
  );
}

/** Resident memory of a process, with its share of what it shares; zero when it has gone. */
async function shareMiB(pid: string): Promise<number> {
  const rollup = await readFile(join('/proc', pid, 'smaps_rollup'), 'utf8').catch(() => '');
  return Number(/^Pss:\s+(\d+) kB$/mu.exec(rollup)?.[1] ?? 0) / 1024;
}

/** What each running machine takes of the host, by the ids in the arguments of its processes. */
async function machinesMiB(ids: readonly string[]): Promise<number[]> {
  const totals = new Map(ids.map((id) => [id, 0]));
  for (const pid of await readdir('/proc')) {
    if (!/^\d+$/u.test(pid)) continue;
    const args = await readFile(join('/proc', pid, 'cmdline'), 'latin1').catch(() => '');
    const id = args.includes('qemu-system') ? ids.find((each) => args.includes(each)) : undefined;
    if (id !== undefined) totals.set(id, (totals.get(id) ?? 0) + (await shareMiB(pid)));
  }
  return [...totals.values()];
}

async function benchFleet(stack: Stack, calls: SandboxCalls, count: number): Promise<void> {
  const beganAt = performance.now();
  const ids = await Promise.all(
    Array.from({ length: count }, () => calls.createRunning(MEM_SIZE_MIB)),
  );
  const runningMs = performance.now() - beganAt;
  const askedAt = performance.now();
  const outputs = await Promise.all(ids.map((id) => calls.output(id, 'cat /etc/machine-id')));
  const answeredMs = performance.now() - askedAt;
  assert.equal(new Set(outputs).size, count, 'each has an identity of its own');
  const machines = await machinesMiB(ids);
  const agentMiB = await shareMiB(String(stack.agent.pid));
  await Promise.all(ids.map((id) => calls.remove(id)));
  process.stdout.write(
    `${count} sandboxes of 256 MiB at once\n` +
      `  all running after ${(runningMs / 1000).toFixed(1)} s, a command in each of them at once ` +
      `${answeredMs.toFixed(0)} ms\n` +
      `  host memory of a machine: p50 ${median(machines).toFixed(0)} MiB; ` +
      `of the agent: ${agentMiB.toFixed(0)} MiB\n\n`,
  );
}

/** `npm run bench -- sandbox [--rounds N] [--fleet N] [--accelerator tcg|kvm]` */
export async function benchSandbox(args: readonly string[]): Promise<void> {
  const { rounds, fleet, accelerator } = readFlags(args);
  const known = { ...(await readEnvFile(paths.config)), ...process.env };
  const { GUEST_DIR: guestDir, DEFAULT_ROOT_DISK: rootDisk } = known;
  assert(
    guestDir !== undefined && rootDisk !== undefined,
    'there is no guest: run ./scripts/setup',
  );
  const stack = await Stack.start({
    GUEST_DIR: guestDir,
    DEFAULT_ROOT_DISK: rootDisk,
    SANDBOX_ACCELERATOR: accelerator,
  });
  try {
    const calls = new SandboxCalls(await stack.newClient());
    await using bare = await BareQemu.prepare({
      guestDir,
      rootDisk,
      accelerator,
      memSizeMib: MEM_SIZE_MIB,
      directory: join(stack.directory, 'bare'),
    });
    await benchStart(calls, bare, rounds);
    await benchGuestAgent(calls);
    if (fleet > 0) await benchFleet(stack, calls, fleet);
  } finally {
    await stack.stop();
  }
}
