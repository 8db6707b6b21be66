import { ApiKeys } from '../../../shared/directory/api-keys.ts';
import { keys } from '../../../shared/directory/keys.ts';
import { orderedMember } from '../../../shared/directory/page.ts';
import { LIMITS } from '../../../shared/limits.ts';
import { redisTest } from '../../helpers/redis-test.ts';

const test = redisTest((redis) => ({ apiKeys: new ApiKeys(redis) }));

test('keys that are created at the same time do not exceed the limit together', async (t) => {
  const { redis, apiKeys } = t.context;
  const account = { id: 'acct-1', name: 'n' };
  const left = 2;
  const now = new Date().toISOString();
  const present = Array.from({ length: LIMITS.apiKeysPerAccountMax - left }, (_, i) => [
    0,
    orderedMember(now, String(i)),
  ]);
  await redis.zadd(keys.apiKeys(account.id), ...(present.flat() as [number, string]));
  const created = await Promise.allSettled(
    Array.from({ length: 5 }, () => apiKeys.create(account, { name: 'n' })),
  );
  const tokens = created.flatMap((each) => (each.status === 'fulfilled' ? [each.value.token] : []));
  t.is(tokens.length, left);
  t.is(await redis.zcard(keys.apiKeys(account.id)), LIMITS.apiKeysPerAccountMax);
  for (const token of tokens) {
    t.like(await apiKeys.authenticate(token), { accountId: account.id });
  }
});
