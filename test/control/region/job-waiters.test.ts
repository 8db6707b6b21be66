import test from 'ava';
import { JobWaiters } from '../../../control/region/job-waiters.ts';
import { newHostId } from '../../../shared/ids.ts';

test('parts that cannot be read end the wait for their job alone', async (t) => {
  const waiters = new JobWaiters();
  const hostId = newHostId();
  const refused = waiters.waitFor('one', hostId, () => {
    throw new Error('not JSON');
  });
  const other = waiters.waitFor('two', hostId);
  waiters.receive(hostId, { type: 'part', jobId: 'one', body: [1] }, [Buffer.from('x')]);
  const settlement = await refused;
  t.is(settlement.kind === 'error' && settlement.error.code, 'internal_server_error');
  t.is(waiters.pendingOf(hostId), 1);
  waiters.receive(hostId, { type: 'result', jobId: 'two', result: {}, body: [] }, []);
  t.is((await other).kind, 'answer');
});
