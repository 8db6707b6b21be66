import test from 'ava';
import { pino } from 'pino';
import { SandboxPublisher } from '../../../../agent/sandboxes/lifecycle/publisher.ts';
import { Sandboxes } from '../../../../shared/directory/sandboxes.ts';
import { startRedis } from '../../../helpers/redis.ts';
import { sandboxRecord } from '../../../helpers/sandbox-records.ts';

const log = pino({ level: 'silent' });
/** Longer than an answer about a known sandbox waits for the directory. */
const AWAY_MS = 1_500;

test('a new sandbox is in the directory before it is reported, even if Redis is silent at first', async (t) => {
  await using server = await startRedis();
  const directory = new Sandboxes(server.redis, 'local-test');
  const publisher = new SandboxPublisher(directory, log);
  const fresh = sandboxRecord();
  const known = sandboxRecord();
  await server.redis.call('CLIENT', 'PAUSE', String(AWAY_MS), 'WRITE');

  await publisher.publish(known); // Its record of before is there; this one follows.
  t.is(await directory.get(known.accountId, known.id), undefined);
  await publisher.publishNew(fresh);
  t.like(await directory.get(fresh.accountId, fresh.id), { id: fresh.id });
  publisher.close();
});

test('a new sandbox that could not be published before the agent ends is not reported', async (t) => {
  await using server = await startRedis();
  const publisher = new SandboxPublisher(new Sandboxes(server.redis, 'local-test'), log);
  server.redis.disconnect();
  const promised = publisher.publishNew(sandboxRecord());
  publisher.close();
  await t.throwsAsync(promised, { code: 'outcome_unknown' });
});
