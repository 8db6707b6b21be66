import test from 'ava';
import { JobSeal } from '../../../shared/jobs/job-seal.ts';
import type { JobEnvelope } from '../../../shared/jobs/jobs.ts';

const seal = new JobSeal(['a secret of at least thirty-two letters']);
const job: JobEnvelope = {
  id: '123e4567-e89b-42d3-a456-426614174000',
  kind: 'disk.create',
  payload: { accountId: 'acct-0123456789abcdef', diskId: 'dsk-0123456789abcdef' },
  replyTo: 'node-0123456789ab',
  requestId: 'req-1',
  deadlineAt: 1_800_000_000_000,
};

test('a sealed job opens only in its queue under its id, and shows nothing while sealed', (t) => {
  const sealed = seal.seal('host-a', job);
  t.deepEqual(seal.open('host-a', job.id, sealed), job);
  for (const text of [job.kind, job.requestId, 'dsk-']) t.false(sealed.sealed.includes(text));
});

test('a job that was moved, renamed, changed or forged does not open', (t) => {
  const sealed = seal.seal('host-a', job);
  const foreign = new JobSeal(['another secret of thirty-two letters']).seal('host-a', job);
  const refused = { code: 'bad_request' };
  t.throws(() => seal.open('host-b', job.id, sealed), refused);
  t.throws(() => seal.open('host-a', job.id.replace('1', '2'), sealed), refused);
  t.throws(() => seal.open('host-a', job.id, foreign), refused);
  for (const data of [job, { sealed: '' }, { sealed: 7 }, {}, [], null, 'sealed', undefined]) {
    t.throws(() => seal.open('host-a', job.id, data), refused);
  }
});
