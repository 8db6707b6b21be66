import { once } from 'node:events';
import { open } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { pino } from 'pino';
import { closeTails } from '../agent/commands/container.ts';
import { ContainerPool } from '../agent/commands/container-pool.ts';
import { runInBackground } from '../shared/background.ts';
import { connectRedis } from '../shared/directory/redis.ts';
import { openContainers } from '../test/helpers/containers.ts';
import type { Stack } from '../test/helpers/stack.ts';
import type { BareRunc } from './bare-runc.ts';
import { ending } from './ending.ts';
import { inTurns, paced, printComparison, printRows, timed } from './statistics.ts';

const WARM_UP = 10;
/** About two of a bare `runc run`, so that the pool can replace the container that it gave. */
const PACE_MS = 80;
/**
 * Entries that Redis keeps for a command, in turn: its job, that the job was taken, its entry in
 * the audit.
 */
const RECORD = 'x'.repeat(500);

/** Milliseconds of the steps of each call. */
type Steps = Record<'queued' | 'ran' | 'synced' | 'audited', number[]>;

/**
 * The least that a command takes which is kept as Berth keeps it: one process that answers over
 * HTTP, writes the same number of records in turn to a Redis that syncs each, and runs the command
 * in a container that waits, beside the sync of a file. Nothing is checked, sealed, placed, logged
 * or sent between processes.
 */
export async function benchExecFloor(
  stack: Stack,
  diskPath: string,
  bare: BareRunc,
  rounds: number,
): Promise<void> {
  await using least = await openLeast(stack, diskPath);
  const call = async (): Promise<void> => {
    const response = await fetch(least.url, { method: 'POST', body: '{"command":"true"}' });
    await response.json();
  };
  const measurements = {
    ours: () => paced(call, PACE_MS),
    baseline: () => timed(() => bare.run()),
  };
  const times = await inTurns(rounds, measurements, WARM_UP);
  printComparison(
    `the least of an exec of \`true\`, one per ${PACE_MS} ms, ${rounds} alternating rounds`,
    times,
    { ours: 'least', baseline: 'bare runc run' },
    { unit: 'ms', target: 'none: a floor' },
  );
  const { queued, ran, synced, audited } = least.steps;
  printRows(
    'of it',
    [
      { name: 'two synced writes to Redis', samples: queued },
      { name: 'mount, bash, reaping, unmount', samples: ran },
      { name: 'sync of a file, beside', samples: synced },
      { name: 'one synced write to Redis', samples: audited },
    ].map(({ name, samples }) => ({ name, samples: samples.slice(WARM_UP) })),
    'ms',
  );
}

async function openLeast(stack: Stack, diskPath: string) {
  await using opened = new AsyncDisposableStack();
  const containers = opened.use(await openContainers());
  const pool = new ContainerPool(
    containers.host,
    { readyMax: 4, startingMax: 2 },
    pino({ level: 'silent' }),
  );
  opened.defer(() => pool.close());
  const redis = connectRedis(stack.environment['REDIS_URL'] ?? '', () => undefined);
  await redis.connect();
  opened.defer(() => redis.disconnect());
  const file = opened.use(await open(join(stack.directory, 'least'), 'a'));
  const steps: Steps = { queued: [], ran: [], synced: [], audited: [] };
  const step = async (name: keyof Steps, work: () => Promise<unknown>): Promise<void> => {
    steps[name].push(await timed(work));
  };
  const mount = { diskPath, subdirectory: '', path: '', readOnly: false, dataOnly: false };
  const run = async (): Promise<void> => {
    const container = await pool.take(ending);
    const { stdout, stderr } = await container.run(() => 'true', [mount]);
    await closeTails(stdout, stderr);
  };
  const sync = async (): Promise<void> => {
    await file.appendFile(RECORD);
    await file.datasync();
  };
  const write = (key: string) => redis.set(key, RECORD);
  const server = createServer((request, response) => {
    request.resume().once('end', () => {
      runInBackground('least.answer', async () => {
        await step('queued', () => write('least:queued').then(() => write('least:taken')));
        await Promise.all([step('ran', run), step('synced', sync)]);
        await step('audited', () => write('least:audit'));
        response.end('{}');
      });
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  opened.defer(() => {
    server.close();
    server.closeAllConnections();
  });
  const { port } = server.address() as AddressInfo;
  const kept = opened.move();
  return {
    url: `http://127.0.0.1:${port}/`,
    steps,
    [Symbol.asyncDispose]: () => kept.disposeAsync(),
  };
}
