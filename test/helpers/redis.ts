import type { Redis } from 'ioredis';
import { connectRedis } from '../../shared/directory/redis.ts';
import { Daemon } from './daemon.ts';
import { freePorts } from './ports.ts';
import { temporaryDirectory } from './temporary.ts';
import { waitFor } from './wait.ts';

/** A Redis of the test's own, with a connection to it; ended when it is disposed of. */
export async function startRedis(): Promise<AsyncDisposable & { readonly redis: Redis }> {
  const stack = new AsyncDisposableStack();
  const { path } = stack.use(await temporaryDirectory());
  const [port] = await freePorts(1);
  const options = ['--bind', '127.0.0.1', '--port', String(port), '--dir', path, '--save', ''];
  const daemon = new Daemon('redis', ['redis-server', ...options], {}, `${path}/redis.log`);
  daemon.start();
  stack.defer(async () => {
    await daemon.stop();
  });
  const redis = await waitFor('Redis', async () => {
    const client = connectRedis(`redis://127.0.0.1:${port}`, () => undefined);
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
