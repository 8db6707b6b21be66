import {
  type DiskRecord,
  type DiskUserRecord,
  sortUsers,
} from '../../../shared/directory/disk-record.ts';
import { Disks } from '../../../shared/directory/disks.ts';
import { newAccountId, newDiskId } from '../../../shared/ids.ts';
import { SCHEMA_LIMITS } from '../../../shared/schemas/limits.ts';
import { redisTest } from '../../helpers/redis-test.ts';

const REGION = 'local-test';

const test = redisTest((redis) => ({ disks: new Disks(redis, REGION) }));

const role = (identifier: string): DiskUserRecord => ({
  ...{ type: 'cloudsts', principal: identifier, identifier },
  createdAt: new Date().toISOString(),
});

const token = (identifier: string): DiskUserRecord => ({
  ...{ type: 'token', identifier, sealedToken: `sealed ${identifier}` },
  createdAt: new Date().toISOString(),
});

const draft = (users: readonly DiskUserRecord[]): DiskRecord => ({
  ...{ id: newDiskId(), accountId: newAccountId(), organization: 'o', region: REGION },
  ...{ name: 'disk', status: 'creating', createdAt: new Date().toISOString() },
  ...{ allowedIps: [], allowedOrigins: [], users, revision: 1 },
});

test.serial('calls that wait for a creation leave nothing behind', async (t) => {
  const { disks, redis } = t.context;
  const record = draft([token('waiting-first')]);
  t.is(await disks.create(record), 'created');
  const indexed = () => redis.keys('*:disks-of-user');
  const before = (await indexed()).length;
  const attempts = ['waiting-a', 'waiting-b'].map((id) => ({ ...record, users: [token(id)] }));
  const busy = await Promise.all(attempts.map((each) => disks.resumeCreation(each)));
  t.deepEqual(busy, ['busy', 'busy']);
  await disks.markAvailable(record);
  const done = await Promise.all(attempts.map((each) => disks.resumeCreation(each)));
  t.deepEqual(done, ['done', 'done']);
  t.is((await indexed()).length, before);
});

test.serial('a resumed creation replaces the users, and one call resumes it', async (t) => {
  const { disks } = t.context;
  const record = draft([token('resumed-first'), token('resumed-both')]);
  await disks.create(record);
  await disks.releaseCreation(record);
  const users = [token('resumed-both'), token('resumed-next')];
  const results = await Promise.all(
    Array.from({ length: 8 }, () => disks.resumeCreation({ ...record, users })),
  );
  t.is(results.filter((result) => result === 'taken').length, 1);
  t.is(results.filter((result) => result === 'busy').length, 7);
  const entry = await disks.get(record.accountId, record.id);
  t.deepEqual(entry?.record.users, users);
  const { accountId, id } = record;
  t.deepEqual(await disks.ofTokenUser('resumed-first'), []);
  t.deepEqual(await disks.ofTokenUser('resumed-both'), [{ accountId, id }]);
  t.deepEqual(await disks.ofTokenUser('resumed-next'), [{ accountId, id }]);
});

test('users that have ended make room, and can be added anew', async (t) => {
  const { disks } = t.context;
  const expiresAt = new Date(Date.now() - 1_000).toISOString();
  const ended = Array.from({ length: SCHEMA_LIMITS.usersPerDiskMax }, (_, at) => ({
    ...token(`ended-${at}`),
    expiresAt,
  }));
  const record = draft(ended);
  await disks.create(record);
  await disks.markAvailable(record);
  const again = ended.slice(0, 20).map(({ identifier }) => token(identifier));
  const added = await Promise.all(again.map((user) => disks.addUser(record, user)));
  t.deepEqual(added, again);
  const entry = await disks.get(record.accountId, record.id);
  t.deepEqual(entry?.record.users, sortUsers(again));
  const { accountId, id } = record;
  for (const { identifier } of again) {
    t.deepEqual(await disks.ofTokenUser(identifier), [{ accountId, id }], identifier);
  }
  t.deepEqual(await disks.ofTokenUser('ended-20'), []);
});

test('users in force count, and are there once', async (t) => {
  const { disks } = t.context;
  const users = Array.from({ length: SCHEMA_LIMITS.usersPerDiskMax }, (_, at) =>
    token(`full-${at}`),
  );
  const record = draft(users);
  await disks.create(record);
  await disks.markAvailable(record);
  const [first] = users;
  t.deepEqual(await disks.addUser(record, { ...token('full-0'), createdAt: 'later' }), first);
  t.is(await disks.addUser(record, token('full-more')), 'limit');
  t.deepEqual(await disks.ofTokenUser('full-more'), []);
  t.is(await disks.removeUser(record, token('full-1')), 'removed');
  t.deepEqual(await disks.ofTokenUser('full-1'), []);
});

test('a user of another type is not indexed, whatever its name', async (t) => {
  const { disks } = t.context;
  const owner = draft([token('shared-name')]);
  await disks.create(owner);
  const other = draft([role('shared-name')]);
  await disks.create(other);
  await disks.markAvailable(other);
  const { accountId, id } = owner;
  t.deepEqual(await disks.ofTokenUser('shared-name'), [{ accountId, id }]);
  t.is(await disks.removeUser(other, role('shared-name')), 'removed');
  t.deepEqual(await disks.ofTokenUser('shared-name'), [{ accountId, id }]);
  t.like(await disks.tokenUser(owner, 'shared-name'), { sealedToken: 'sealed shared-name' });
  t.is(await disks.tokenUser(other, 'shared-name'), undefined);
});
