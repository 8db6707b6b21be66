import assert from 'node:assert';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import type { GuestChannel } from '../agent/machines/guest-link/guest-channel.ts';
import type { GuestOutput } from '../agent/machines/guest-link/guest-types.ts';
import { readEnvFile } from '../scripts/env-file.ts';
import { paths } from '../scripts/local-paths.ts';
import { MiB } from '../shared/units.ts';
import type { ApiClient } from '../test/helpers/api.ts';
import { createSandbox } from '../test/helpers/sandboxes.ts';
import { TestConnection } from '../test/helpers/test-connection.ts';
import { Stack } from '../test/helpers/stack.ts';
import { waitFor } from '../test/helpers/wait.ts';
import { BareQemu } from './bare-qemu.ts';
import {
  alternate,
  median,
  printComparison,
  printFigures,
  printRows,
  timed,
} from './statistics.ts';

const MEM_SIZE_MIB = 1024;
const STREAM_BYTES = 256 * MiB;
const PIECE_BYTES = 16 * MiB;
/** Puts out random bytes: 16 MiB of them, again and again. */
const MAKE_PIECE = `head -c ${PIECE_BYTES} /dev/urandom >/run/piece`;
const STREAM = `for i in $(seq ${STREAM_BYTES / PIECE_BYTES}); do cat /run/piece; done`;
const IDLE_CONNECTIONS = 500;
const KEYSTROKES = 200;

/** Runs a command over the guest's channel. Resolves once it has put out so many bytes */
async function runBare(channel: GuestChannel, command: string, bytes: number): Promise<void> {
  const id = randomUUID();
  const { promise, resolve } = Promise.withResolvers<void>();
  const listen = (output: GuestOutput): void => {
    if (output.processId !== id) return;
    const end = output.offset + output.bytes.length;
    channel.acknowledge(id, end);
    if (end >= bytes) resolve();
  };
  channel.on('output', listen);
  const exited = once(channel, 'exited');
  const spec = {
    environment: {},
    directory: '',
    user: '',
    terminal: undefined,
    timeoutMs: undefined,
  };
  const streams = { stdin: true, isFollowed: true, isAttachable: false };
  await channel.start({ id, command, ...spec, ...streams });
  await promise;
  channel.off('output', listen);
  await exited;
  await channel.forget(id);
}

/** Resolves when a session's process has put out so many bytes. */
async function received(connection: TestConnection, bytes: number): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  connection.readFrames(({ offset, bytes: piece }) => {
    if (offset + piece.length >= bytes) resolve();
  });
  await promise;
}

async function benchStart(
  api: ApiClient,
  id: string,
  channel: GuestChannel,
  rounds: number,
): Promise<void> {
  const connects: number[] = [];
  let connection: TestConnection | undefined;
  const times = { ours: [] as number[], baseline: [] as number[] };
  for (let round = 0; round < rounds; round += 1) {
    connects.push(
      await timed(async () => {
        connection = await TestConnection.open(api, id);
      }),
    );
    assert(connection !== undefined);
    const opened = connection;
    times.ours.push(
      await timed(async () => {
        const first = received(opened, 6);
        opened.say({ type: 'start', command: 'echo ready', env: {} });
        await first;
      }),
    );
    await opened.end();
    times.baseline.push(await timed(() => runBare(channel, 'echo ready', 6)));
  }
  const names = { ours: 'session, open connection', baseline: 'bare guest channel' };
  printComparison('start to first byte of echo', times, names, { unit: 'ms', target: '<= 2' });
  printRows('before it', [{ name: 'URL and WebSocket', samples: connects }], 'ms');
}

const toRates = (samples: readonly number[]): number[] =>
  samples.map((ms) => STREAM_BYTES / MiB / (ms / 1000));

async function benchStream(
  api: ApiClient,
  id: string,
  channel: GuestChannel,
  rounds: number,
): Promise<void> {
  await runBare(channel, `${MAKE_PIECE}; echo ready`, 6);
  const prepare = await TestConnection.open(api, id);
  prepare.say({ type: 'start', command: MAKE_PIECE, env: {} });
  await prepare.end();
  const ours = async (): Promise<void> => {
    const connection = await TestConnection.open(api, id);
    const whole = received(connection, STREAM_BYTES);
    connection.say({ type: 'start', command: STREAM, env: {} });
    await whole;
    await connection.end();
  };
  const times = await alternate(rounds, ours, () => runBare(channel, STREAM, STREAM_BYTES));
  printComparison(
    '256 MiB from guest to client',
    { ours: toRates(times.ours), baseline: toRates(times.baseline) },
    { ours: 'session', baseline: 'bare guest channel' },
    { unit: 'MiB/s', target: '>= 0.5' },
  );
}

/** Resident memory of a process, in MiB. */
async function residentMib(pid: number): Promise<number> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8');
  return Number(/^VmRSS:\s+(\d+) kB$/mu.exec(status)?.[1]) / 1024;
}

async function benchIdle(api: ApiClient, id: string, stack: Stack): Promise<void> {
  const pid = stack.agent.pid;
  const attach = async (count: number): Promise<TestConnection[]> => {
    const connections: TestConnection[] = [];
    while (connections.length < count) {
      const connection = await TestConnection.open(api, id);
      connection.say({ type: 'start', command: 'cat', env: {} });
      await connection.until(() => connection.processId !== '');
      connections.push(connection);
    }
    return connections;
  };
  const warm = await attach(20); // Modules that the first connections load do not count.
  await sleep(2_000);
  const before = await residentMib(pid);
  const connections = await attach(IDLE_CONNECTIONS);
  await sleep(5_000);
  const after = await residentMib(pid);
  printFigures(
    `what ${IDLE_CONNECTIONS} attached idle connections add to the ${before.toFixed(1)} MiB of the agent`,
    { growth: after - before },
    { unit: 'MiB', target: '≤ 20' },
  );
  const all = [...warm, ...connections];
  for (const connection of all) connection.say({ type: 'close_stdin' });
  await Promise.all(all.map((connection) => connection.end()));
}

async function keystrokes(connection: TestConnection): Promise<number[]> {
  const samples: number[] = [];
  for (let count = 0; count < KEYSTROKES; count += 1) {
    const { cursor } = connection;
    samples.push(
      await timed(async () => {
        connection.write('x');
        await connection.until(() => connection.cursor > cursor);
      }),
    );
    await sleep(20);
  }
  return samples;
}

async function benchKeystrokes(api: ApiClient, id: string): Promise<void> {
  const quiet = await TestConnection.open(api, id);
  quiet.say({ type: 'start', command: 'stty raw -echo; exec cat', env: {}, terminal: true });
  await quiet.until(() => quiet.processId !== '');
  await sleep(500);
  const unloaded = await keystrokes(quiet);
  const loud = await TestConnection.open(api, id);
  let bytes = 0;
  loud.readFrames((frame) => {
    bytes += frame.bytes.length;
  });
  loud.say({ type: 'start', command: 'cat /dev/zero', env: {} });
  await waitFor('the loud session', async () => bytes > 4 * MiB);
  const loaded = await keystrokes(quiet);
  const p95 = [...loaded].sort((a, b) => a - b)[Math.floor(loaded.length * 0.95)] ?? Number.NaN;
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

/**
 * `npm run bench -- process [--rounds N] [--only start,stream,idle,keys]`: see docs/benchmarks.md.
 */
export async function benchProcess(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      rounds: { type: 'string', default: '60' },
      only: { type: 'string', default: 'start,stream,idle,keys' },
    },
  });
  const rounds = Number(values.rounds);
  const only = new Set(values.only.split(','));
  const known = { ...(await readEnvFile(paths.config)), ...process.env };
  const { GUEST_DIR: guestDir = '', DEFAULT_ROOT_DISK: rootDisk = '' } = known;
  assert(guestDir !== '' && rootDisk !== '', 'there is no guest: run ./scripts/setup');
  const settings = { GUEST_DIR: guestDir, DEFAULT_ROOT_DISK: rootDisk, SANDBOX_PREWARMED: '0' };
  const connections = { CONNECTIONS_MAX: '4096', CONNECTIONS_PER_ADDRESS_MAX: '4096' };
  const stack = await Stack.start(
    { ...settings, ...connections, SANDBOX_ACCELERATOR: 'tcg', LOG_LEVEL: 'warn' },
    [],
    true,
  );
  try {
    const parts = { guestDir, rootDisk, accelerator: 'tcg', memSizeMib: MEM_SIZE_MIB } as const;
    await using bare = await BareQemu.prepare({
      ...parts,
      directory: join(stack.directory, 'bare'),
    });
    const api = await stack.newClient();
    const size = { mem_size_mib: MEM_SIZE_MIB, max_concurrent_execs: 1024 };
    const { sandbox_id: id } = await createSandbox(api, { ...size, vcpu_count: 1 });
    if (only.has('start') || only.has('stream')) {
      await using machine = await bare.start(AbortSignal.timeout(600_000));
      if (only.has('start')) await benchStart(api, id, machine.channel, rounds);
      if (only.has('stream')) await benchStream(api, id, machine.channel, Math.ceil(rounds / 20));
    }
    if (only.has('idle')) await benchIdle(api, id, stack);
    if (only.has('keys')) {
      const { sandbox_id: two } = await createSandbox(api, { ...size, vcpu_count: 2 });
      await benchKeystrokes(api, two);
    }
  } finally {
    await stack.stop();
  }
}
