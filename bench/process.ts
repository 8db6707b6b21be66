import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { GuestChannel } from '../agent/machines/guest-link/guest-channel.ts';
import { MiB } from '../shared/units.ts';
import type { ApiClient } from '../test/helpers/api.ts';
import { createSandbox, sandboxSettings } from '../test/helpers/sandboxes.ts';
import { runAttached, TestConnection } from '../test/helpers/test-connection.ts';
import { Stack } from '../test/helpers/stack.ts';
import { waitFor } from '../test/helpers/wait.ts';
import { BareQemu } from './bare-qemu.ts';
import { runInGuest } from './bare-slot.ts';
import { readFlags } from './flags.ts';
import { residentMiB } from './process-usage.ts';
import {
  alternate,
  inTurns,
  median,
  printComparison,
  printFigures,
  printRows,
  quantile,
  timed,
} from './statistics.ts';

const MEM_SIZE_MIB = 1024;
const PIECE_MIB = 16;
/** Random bytes to put out again and again. */
const MAKE_PIECE = `head -c ${PIECE_MIB}M /dev/urandom >/run/piece`;

interface Bench {
  readonly stack: Stack;
  readonly api: ApiClient;
  readonly rounds: number;
  readonly mib: number;
  readonly connections: number;
}

/** Runs a command on a connection to its end. Resolves once it has put out so many bytes. */
async function runOn(connection: TestConnection, command: string, bytes: number): Promise<void> {
  let seen = 0;
  connection.readFrames((frame) => {
    seen = frame.offset + frame.bytes.length;
  });
  connection.say({ type: 'start', command, env: {} });
  await connection.until(() => seen >= bytes);
}

async function benchStart({ api, rounds }: Bench, id: string, channel: GuestChannel) {
  const connects: number[] = [];
  const measurements = {
    async ours() {
      const begunAt = performance.now();
      const connection = await TestConnection.open(api, id);
      connects.push(performance.now() - begunAt);
      const ms = await timed(() => runOn(connection, 'echo ready', 6));
      await connection.end();
      return ms;
    },
    baseline: async () => {
      const begunAt = performance.now();
      let ms = 0;
      const output = (): void => void (ms ||= performance.now() - begunAt);
      await runInGuest(channel, 'echo ready', { output });
      return ms;
    },
  };
  const times = await inTurns(rounds, measurements);
  const names = { ours: 'session, open connection', baseline: 'bare guest channel' };
  printComparison('start to first byte of echo', times, names, { unit: 'ms', target: '≤ 2' });
  printRows('before it', [{ name: 'URL and WebSocket', samples: connects }], 'ms');
}

async function benchStream({ api, rounds, mib }: Bench, id: string, channel: GuestChannel) {
  await runInGuest(channel, MAKE_PIECE);
  await runAttached(api, id, MAKE_PIECE);
  const pieces = Math.ceil(mib / PIECE_MIB);
  const [command, bytes] = [
    `for i in $(seq ${pieces}); do cat /run/piece; done`,
    pieces * PIECE_MIB * MiB,
  ] as const;
  const ours = async (): Promise<void> => {
    const connection = await TestConnection.open(api, id);
    await runOn(connection, command, bytes);
    await connection.end();
  };
  const times = await alternate(Math.ceil(rounds / 20), ours, () => runInGuest(channel, command));
  const toRates = (samples: readonly number[]): number[] =>
    samples.map((ms) => bytes / MiB / (ms / 1000));
  printComparison(
    `${pieces * PIECE_MIB} MiB from guest to client`,
    { ours: toRates(times.ours), baseline: toRates(times.baseline) },
    { ours: 'session', baseline: 'bare guest channel' },
    { unit: 'MiB/s', target: '≥ 0.5' },
  );
}

async function benchIdle({ api, stack, connections: count }: Bench, id: string): Promise<void> {
  const pid = stack.agent.pid;
  const attach = async (wanted: number): Promise<TestConnection[]> => {
    const connections: TestConnection[] = [];
    while (connections.length < wanted) {
      const connection = await TestConnection.open(api, id);
      connection.say({ type: 'start', command: 'cat', env: {} });
      await connection.until(() => connection.processId !== '');
      connections.push(connection);
    }
    return connections;
  };
  const warm = await attach(20); // Modules that the first connections load do not count.
  await sleep(2_000);
  const before = await residentMiB(pid);
  const connections = await attach(count);
  await sleep(5_000);
  const after = await residentMiB(pid);
  printFigures(
    `what ${count} attached idle connections add to the ${before.toFixed(1)} MiB of the agent`,
    { growth: after - before },
    { unit: 'MiB', target: '≤ 20' },
  );
  const all = [...warm, ...connections];
  for (const connection of all) connection.say({ type: 'close_stdin' });
  await Promise.all(all.map((connection) => connection.end()));
}

async function keystrokes(connection: TestConnection, count: number): Promise<number[]> {
  const stroke = async (): Promise<number> => {
    const { cursor } = connection;
    const ms = await timed(async () => {
      connection.write('x');
      await connection.until(() => connection.cursor > cursor);
    });
    await sleep(20);
    return ms;
  };
  return (await inTurns(count, { stroke })).stroke;
}

async function benchKeystrokes({ api, rounds }: Bench, id: string): Promise<void> {
  const quiet = await TestConnection.open(api, id);
  quiet.say({ type: 'start', command: 'stty raw -echo; exec cat', env: {}, terminal: true });
  await quiet.until(() => quiet.processId !== '');
  await sleep(500);
  const unloaded = await keystrokes(quiet, 4 * rounds);
  const loud = await TestConnection.open(api, id);
  let bytes = 0;
  loud.readFrames((frame) => {
    bytes += frame.bytes.length;
  });
  loud.say({ type: 'start', command: 'cat /dev/zero', env: {} });
  await waitFor('the loud session', async () => bytes > 4 * MiB);
  const loaded = await keystrokes(quiet, 4 * rounds);
  const p95 = quantile(loaded, 0.95);
  printRows(
    'keystroke to echo',
    [
      { name: 'alone', samples: unloaded },
      { name: 'beside a session at full speed', samples: loaded },
    ],
    'ms',
  );
  const ratio = { 'p95 beside it / p50 alone': p95 / median(unloaded) };
  printFigures('keystrokes beside a session at full speed', ratio, { unit: '×', target: '≤ 10' });
  for (const { processId } of [loud, quiet]) {
    const kill = await TestConnection.open(api, id, { type: 'kill', process_id: processId });
    await kill.end();
  }
}

/** `npm run bench -- process`: see docs/benchmarks.md. */
export async function benchProcess(args: readonly string[]): Promise<void> {
  const known = { rounds: 60, mib: 256, connections: 500 };
  const { only, ...flags } = readFlags(args, known, ['start', 'stream', 'idle', 'keys']);
  const settings = sandboxSettings();
  await using stack = await Stack.start({
    ...settings,
    ...{ CONNECTIONS_MAX: '4096', CONNECTIONS_PER_ADDRESS_MAX: '4096', LOG_LEVEL: 'warn' },
  });
  const api = await stack.newClient();
  const bench = { ...flags, stack, api };
  const size = { mem_size_mib: MEM_SIZE_MIB, max_concurrent_execs: 1024 };
  const { sandbox_id: id } = await createSandbox(api, { ...size, vcpu_count: 1 });
  if (only.has('start') || only.has('stream')) {
    await using bare = await BareQemu.prepare({
      guestDir: settings['GUEST_DIR'] ?? '',
      rootDisk: settings['DEFAULT_ROOT_DISK'] ?? '',
      ...{ accelerator: 'tcg', memSizeMib: MEM_SIZE_MIB },
      directory: join(stack.directory, 'bare'),
    });
    await using machine = await bare.start();
    if (only.has('start')) await benchStart(bench, id, machine.channel);
    if (only.has('stream')) await benchStream(bench, id, machine.channel);
  }
  if (only.has('idle')) await benchIdle(bench, id);
  if (only.has('keys')) {
    const { sandbox_id: two } = await createSandbox(api, { ...size, vcpu_count: 2 });
    await benchKeystrokes(bench, two);
  }
}
