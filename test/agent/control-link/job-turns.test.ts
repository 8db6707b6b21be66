import { setTimeout as sleep } from 'node:timers/promises';
import test from 'ava';
import { JobTurns } from '../../../agent/control-link/job-turns.ts';
import type { JobKind } from '../../../shared/jobs/jobs.ts';
import { LINK_LIMITS } from '../../../agent/control-link/limits.ts';

const jobOf = (kind: JobKind, accountId: string, leftMs = 60_000) => ({
  kind,
  payload: { accountId },
  deadlineAt: Date.now() + leftMs,
});

test('disk jobs of one account leave places for those of another', async (t) => {
  const turns = new JobTurns();
  const many = Array.from({ length: LINK_LIMITS.hostJobsAtOnceMax }, () =>
    turns.take(jobOf('disk.create', 'first')),
  );
  const other = await turns.take(jobOf('disk.stat', 'second'));
  t.not(other, undefined);
  turns.close();
  const settled = await Promise.allSettled(many);
  t.is(settled.filter(({ status }) => status === 'rejected').length, 4);
});

test('a disk job that waits past its deadline is not begun', async (t) => {
  const turns = new JobTurns();
  for (let i = 0; i < LINK_LIMITS.hostJobsPerAccountMax; i += 1) {
    await turns.take(jobOf('disk.create', 'first'));
  }
  await t.throwsAsync(turns.take(jobOf('disk.create', 'first', 20)), { code: 'timeout' });
});

test('a disk job whose deadline is farther than a timer can wait for gets its turn', async (t) => {
  const turns = new JobTurns();
  const first = await turns.take(jobOf('disk.create', 'first'));
  for (let i = 1; i < LINK_LIMITS.hostJobsPerAccountMax; i += 1) {
    await turns.take(jobOf('disk.create', 'first'));
  }
  const taken = turns.take(jobOf('disk.create', 'first', 2 ** 40));
  const early = await Promise.race([taken.catch(() => 'refused'), sleep(50, 'waits')]);
  t.is(early, 'waits');
  first?.release();
  t.not(await taken, undefined);
});

test('calls to sandboxes beyond the share of an account are refused; discards never are', async (t) => {
  const turns = new JobTurns();
  for (let i = 0; i < LINK_LIMITS.sandboxJobsPerAccountMax; i += 1) {
    await turns.take(jobOf('sandbox.exec', 'first'));
  }
  await t.throwsAsync(turns.take(jobOf('sandbox.exec', 'first')), { code: 'no_capacity' });
  for (const kind of ['sandbox.discard', 'snapshot.discard'] as const)
    await t.notThrowsAsync(turns.take(jobOf(kind, 'first', Number.MAX_SAFE_INTEGER)));
  await t.notThrowsAsync(turns.take(jobOf('sandbox.exec', 'second')));
});
