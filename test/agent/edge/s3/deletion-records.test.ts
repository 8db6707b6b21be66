import { pino } from 'pino';
import { DeletionRecords } from '../../../../agent/edge/s3/deletion-records.ts';
import { Activity } from '../../../../shared/directory/activity.ts';
import { redisTest } from '../../../helpers/redis-test.ts';
import { waitFor } from '../../../helpers/wait.ts';

const test = redisTest((redis) => ({ activity: new Activity(redis) }));

const log = pino({ level: 'silent' });
const USER = {
  kind: 'disk_user',
  ...{ identifier: 'dtu-čaj', secret: 'dt-x', accountId: 'acct-1', refs: [], disk: undefined },
} as const;
const KEY = { kind: 'account', accountId: 'acct-1', keyId: 'k1', scopes: [] } as const;
const deletion = (disk: string, keys = 1, principal: typeof USER | typeof KEY = USER) => ({
  ...{ accountId: 'acct-1', diskId: disk, principal, address: '203.0.113.7', requestId: 'req-1' },
  deleted: { keys, failedKeys: 0 },
});

test('single deletions are added up per disk and user, and written when their time is over', async (t) => {
  const { activity } = t.context;
  const records = new DeletionRecords({ activity, log, summedForMs: 50 });
  for (let count = 0; count < 500; count += 1) await records.count(deletion('dsk-1'));
  await records.count(deletion('dsk-1', 1, KEY));
  await records.count(deletion('dsk-2'));
  const found = async () => (await activity.list('acct-1', {})).items;
  await waitFor('the sums', async () => (await found()).length === 3);
  const entries = (await found()).map(({ diskId, eventType, details }) => [
    ...[diskId, eventType, details['userIdentifier'] ?? details['keyId'], details['keys']],
  ]);
  t.deepEqual(entries.toReversed(), [
    ['dsk-1', 'disk.objects_deleted', 'dtu-čaj', 500],
    ['dsk-1', 'disk.objects_deleted', 'k1', 1],
    ['dsk-2', 'disk.objects_deleted', 'dtu-čaj', 1],
  ]);
  await records.count(deletion('dsk-3'));
  await records.flush();
  t.is((await found()).length, 4);
});
