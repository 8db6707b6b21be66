import {
  type DiskRecord,
  type DiskUserRecord,
  sortUsers,
} from '../../../shared/directory/disk-record.ts';
import { Disks } from '../../../shared/directory/disks.ts';
import { newAccountId, newDiskId } from '../../../shared/ids.ts';
import { LIMITS } from '../../../shared/limits.ts';
import { redisTest } from '../../helpers/redis-test.ts';

const REGION = 'local-test';

const test = redisTest((redis) => ({ disks: new Disks(redis, REGION) }));

const role = (identifier: string): DiskUserRecord => ({
  ...{ type: 'cloudsts', principal: identifier, identifier },
  createdAt: new Date().toISOString(),
});

const draft = (users: readonly DiskUserRecord[]): DiskRecord => ({
  ...{ id: newDiskId(), accountId: newAccountId(), organization: 'o', region: REGION },
  ...{ name: 'disk', status: 'creating', createdAt: new Date().toISOString() },
  ...{ allowedIps: [], allowedOrigins: [], users, revision: 1 },
});

test.serial('calls that wait for a creation leave nothing behind', async (t) => {
  const { disks, redis } = t.context;
  const record = draft([role('waiting-first')]);
  t.is(await disks.create(record), 'created');
  const indexed = () => redis.keys('*:disks-of-user');
  const before = (await indexed()).length;
  const attempts = ['waiting-a', 'waiting-b'].map((id) => ({ ...record, users: [role(id)] }));
  const busy = await Promise.all(attempts.map((each) => disks.resumeCreation(each)));
  t.deepEqual(busy, ['busy', 'busy']);
  await disks.markAvailable(record);
  const done = await Promise.all(attempts.map((each) => disks.resumeCreation(each)));
  t.deepEqual(done, ['done', 'done']);
  t.is((await indexed()).length, before);
});

test.serial('a resumed creation replaces the users, and one call resumes it', async (t) => {
  const { disks } = t.context;
  const record = draft([role('resumed-first'), role('resumed-both')]);
  await disks.create(record);
  await disks.releaseCreation(record);
  const users = [role('resumed-both'), role('resumed-next')];
  const results = await Promise.all(
    Array.from({ length: 8 }, () => disks.resumeCreation({ ...record, users })),
  );
  t.is(results.filter((result) => result === 'taken').length, 1);
  t.is(results.filter((result) => result === 'busy').length, 7);
  const entry = await disks.get(record.accountId, record.id);
  t.deepEqual(entry?.record.users, users);
  const { accountId, id } = record;
  t.deepEqual(await disks.ofUser('resumed-first'), []);
  t.deepEqual(await disks.ofUser('resumed-both'), [{ accountId, id }]);
  t.deepEqual(await disks.ofUser('resumed-next'), [{ accountId, id }]);
});

test('users that have ended make room, and can be added anew', async (t) => {
  const { disks } = t.context;
  const expiresAt = new Date(Date.now() - 1_000).toISOString();
  const ended = Array.from({ length: LIMITS.usersPerDiskMax }, (_, at) => ({
    ...role(`ended-${at}`),
    expiresAt,
  }));
  const record = draft(ended);
  await disks.create(record);
  await disks.markAvailable(record);
  const again = ended.slice(0, 20).map(({ identifier }) => role(identifier));
  const added = await Promise.all(again.map((user) => disks.addUser(record, user)));
  t.deepEqual(added, again);
  const entry = await disks.get(record.accountId, record.id);
  t.deepEqual(entry?.record.users, sortUsers(again));
  const { accountId, id } = record;
  for (const { identifier } of again) {
    t.deepEqual(await disks.ofUser(identifier), [{ accountId, id }], identifier);
  }
  t.deepEqual(await disks.ofUser('ended-20'), []);
});

test('users in force count, and are there once', async (t) => {
  const { disks } = t.context;
  const users = Array.from({ length: LIMITS.usersPerDiskMax }, (_, at) => role(`full-${at}`));
  const record = draft(users);
  await disks.create(record);
  await disks.markAvailable(record);
  const [first] = users;
  t.deepEqual(await disks.addUser(record, { ...role('full-0'), createdAt: 'later' }), first);
  t.is(await disks.addUser(record, role('full-more')), 'limit');
  t.deepEqual(await disks.ofUser('full-more'), []);
  t.is(await disks.removeUser(record, role('full-1')), 'removed');
  t.deepEqual(await disks.ofUser('full-1'), []);
});
