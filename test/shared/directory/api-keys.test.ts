import { ApiKeys } from '../../../shared/directory/api-keys.ts';
import { keys } from '../../../shared/directory/keys.ts';
import { orderedMember } from '../../../shared/directory/page.ts';
import { DIRECTORY_LIMITS } from '../../../shared/directory/limits.ts';
import { redisTest } from '../../helpers/redis-test.ts';

const test = redisTest((redis) => ({ apiKeys: new ApiKeys(redis) }));

test('keys that are created at the same time do not exceed the limit together', async (t) => {
  const { redis, apiKeys } = t.context;
  const account = { id: 'acct-1', name: 'n' };
  const left = 2;
  const now = new Date().toISOString();
  const present = Array.from({ length: DIRECTORY_LIMITS.apiKeysPerAccountMax - left }, (_, i) => [
    0,
    orderedMember(now, String(i)),
  ]);
  await redis.zadd(keys.apiKeys(account.id), ...(present.flat() as [number, string]));
  const created = await Promise.allSettled(
    Array.from({ length: 5 }, () => apiKeys.create(account, { name: 'n' })),
  );
  const tokens = created.flatMap((each) => (each.status === 'fulfilled' ? [each.value.token] : []));
  t.is(tokens.length, left);
  t.is(await redis.zcard(keys.apiKeys(account.id)), DIRECTORY_LIMITS.apiKeysPerAccountMax);
  for (const token of tokens) {
    t.like(await apiKeys.authenticate(token), { accountId: account.id });
  }
});

test('what calls that were cut off left in the index makes room for a key', async (t) => {
  const { redis, apiKeys } = t.context;
  const account = { id: 'acct-2', name: 'n' };
  const old = { id: 'old', name: 'n', accountId: account.id, organization: 'n', scopes: [] };
  const createdAt = new Date(Date.now() - 3_600_000).toISOString();
  await apiKeys.restore({ ...old, tokenSuffix: 'abcd', createdAt });
  const young = orderedMember(new Date().toISOString(), 'about-to-be-written');
  const unused = Array.from({ length: DIRECTORY_LIMITS.apiKeysPerAccountMax - 2 }, (_, i) =>
    orderedMember(createdAt, `unused-${i}`),
  );
  const index = keys.apiKeys(account.id);
  await Promise.all([young, ...unused].map((member) => redis.zadd(index, 0, member)));
  const { record } = await apiKeys.create(account, { name: 'n' });
  t.deepEqual(
    new Set(await redis.zrangebylex(index, '-', '+')),
    new Set([orderedMember(createdAt, 'old'), young, orderedMember(record.createdAt, record.id)]),
  );
});
