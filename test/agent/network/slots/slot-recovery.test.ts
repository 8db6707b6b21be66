/* Leftovers of a former agent's network slots; the slots are in memory. */
import anyTest from 'ava';
import { pino } from 'pino';
import { SlotPool } from '../../../../agent/network/slots/slot-pool.ts';
import { newHostId } from '../../../../shared/ids.ts';
import { FakeTime } from '../../../helpers/fake-time.ts';
import { InMemoryNamespaces } from '../../../helpers/in-memory-namespaces.ts';

const { serial: test } = anyTest;
const log = pino({ level: 'silent' });

test('a slot that could not be removed is nobody’s until it is', async (t) => {
  using time = new FakeTime();
  const namespaces = new InMemoryNamespaces();
  namespaces.present.add(0);
  let failures = 0;
  namespaces.removing = async () => {
    failures += 1;
    if (failures <= 2) throw new Error('the namespace is busy');
  };
  const pool = await SlotPool.open({
    ...{ hostId: newHostId(), slotsMax: 3, readyMax: 0, leased: [2], namespaces, log },
  });
  t.is(pool.freeCount, 1);
  t.is((await pool.lease()).index, 1);
  await t.throwsAsync(pool.lease(), { code: 'no_capacity' });
  await time.pass(3_000);
  t.is(failures, 3);
  t.is((await pool.lease()).index, 0);
});
