import test from 'ava';
import { Beat } from '../../../agent/system/beat.ts';
import { connectRedis } from '../../../shared/directory/redis.ts';
import { SYSTEM_LIMITS } from '../../../agent/system/limits.ts';
import { FakeTime } from '../../helpers/fake-time.ts';
import { startRedis } from '../../helpers/redis.ts';
import { waitFor } from '../../helpers/wait.ts';

test.serial('work that was added at different times begins at the same beats', async (t) => {
  using time = new FakeTime();
  const beat = new Beat();
  const begun: string[] = [];
  const note = (name: string) => (): void => {
    begun.push(`${name} at ${performance.now() / SYSTEM_LIMITS.hostReportMs}`);
  };
  beat.every(2 * SYSTEM_LIMITS.hostReportMs, note('first'));
  await time.pass(1.5 * SYSTEM_LIMITS.hostReportMs);
  const stop = beat.every(2 * SYSTEM_LIMITS.hostReportMs, note('second'));
  await time.pass(3 * SYSTEM_LIMITS.hostReportMs);
  t.deepEqual(begun, ['first at 2', 'second at 2', 'first at 4', 'second at 4']);
  stop();
  await time.pass(2 * SYSTEM_LIMITS.hostReportMs);
  t.deepEqual(begun.slice(4), ['first at 6']);
});

const WORKS = 20;
const TURNS = 10;

test.serial('commands of one beat reach Redis in one round trip', async (t) => {
  await using server = await startRedis();
  const client = connectRedis(`redis://127.0.0.1:${server.redis.options.port}`, (error) =>
    t.log(error),
  );
  await client.connect();
  const reads = async (): Promise<number> =>
    Number(/total_reads_processed:(\d+)/u.exec(await server.redis.info('stats'))?.[1]);
  const before = await reads();
  const beat = new Beat();
  let turns = 0;
  const stops = Array.from({ length: WORKS }, (_, i) =>
    beat.every(SYSTEM_LIMITS.hostReportMs, () => {
      if (i === 0) turns += 1;
      client.hset('hosts', `host ${i}`, turns).catch((error: unknown) => t.fail(String(error)));
    }),
  );
  await waitFor('the beats', async () => turns >= TURNS);
  for (const stop of stops) stop();
  const wanted = turns * 2; // Some are split in two: each chunk of a socket is a read.
  t.true((await reads()) - before <= wanted, `${WORKS * turns} commands`);
  client.disconnect();
});
