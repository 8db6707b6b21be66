import { Redis } from 'ioredis';
import { Daemon } from './daemon.ts';
import { freePorts } from './ports.ts';
import { temporaryDirectory } from './temporary.ts';
import { waitFor } from './wait.ts';

/** A Redis of the test's own, with a connection to it; ended when it is disposed of. */
export async function startRedis(): Promise<AsyncDisposable & { readonly redis: Redis }> {
  const stack = new AsyncDisposableStack();
  const { path } = stack.use(await temporaryDirectory());
  const [port = 0] = await freePorts(1);
  const options = ['--bind', '127.0.0.1', '--port', String(port), '--dir', path, '--save', ''];
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
  return { redis, [Symbol.asyncDispose]: () => stack.disposeAsync() };
}
