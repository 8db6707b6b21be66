import { Redis } from 'ioredis';
import { Daemon } from './daemon.ts';
import { freePorts } from './ports.ts';
import { temporaryDirectory } from './temporary.ts';
import { waitFor } from './wait.ts';

const LAST_SLOT = 16_383;

/**
 * A Redis of the test's own, with a connection to it; ended when it is disposed of. It is the only
 * node of a Redis Cluster, so that it refuses commands and scripts whose keys are of several slots.
 */
export async function startRedis(): Promise<AsyncDisposable & { readonly redis: Redis }> {
  const stack = new AsyncDisposableStack();
  const { path } = stack.use(await temporaryDirectory());
  const [port = 0, busPort = 0] = await freePorts(2);
  const options = [
    ...['--bind', '127.0.0.1', '--port', String(port), '--dir', path, '--save', ''],
    ...['--cluster-enabled', 'yes', '--cluster-port', String(busPort)],
  ];
  const daemon = new Daemon('redis', ['redis-server', ...options], {}, `${path}/redis.log`);
  daemon.start();
  stack.defer(async () => {
    await daemon.stop();
  });
  const redis = await waitFor('Redis', async () => {
    // Without time-outs: a test that moves the clock would run into them.
    const client = new Redis({
      ...{ host: '127.0.0.1', port, lazyConnect: true },
      ...{ enableOfflineQueue: false, enableAutoPipelining: true, maxRetriesPerRequest: 0 },
    });
    client.on('error', () => undefined);
    try {
      await client.connect();
      await client.ping();
      return client;
    } catch {
      client.disconnect();
      return false;
    }
  });
  stack.defer(() => redis.disconnect());
  await redis.cluster('ADDSLOTSRANGE', 0, LAST_SLOT);
  await waitFor('the slots', async () => (await redis.cluster('INFO')).includes('state:ok'));
  return { redis, [Symbol.asyncDispose]: () => stack.disposeAsync() };
}
