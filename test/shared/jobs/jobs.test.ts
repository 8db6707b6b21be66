import test from 'ava';
import * as fc from '../../helpers/fast-check.ts';
import { AppError } from '../../../shared/errors.ts';
import { parseJob } from '../../../shared/jobs/jobs.ts';

const disk = { accountId: 'acct-0123456789abcdef', diskId: 'dsk-0123456789abcdef' };
const mount = {
  diskId: disk.diskId,
  path: '',
  subdirectory: '',
  readOnly: false,
  checkouts: [],
  checkoutWaitMs: 0,
};
const payloads: Readonly<Record<string, object>> = {
  'exec.run': { accountId: disk.accountId, mounts: [mount], command: 'true' },
  'disk.create': disk,
  'disk.delete': disk,
  'disk.record': disk,
  'disk.checkMount': disk,
  'disk.stat': { ...disk, key: 'file' },
};
const job = (kind: string): Record<string, unknown> => ({
  id: '123e4567-e89b-42d3-a456-426614174000',
  kind,
  payload: payloads[kind],
  replyTo: 'node-0123456789ab',
  requestId: 'req-1',
  deadlineAt: 1_800_000_000_000,
});

for (const kind of Object.keys(payloads)) {
  test(`a job of kind ${kind} is read as it was written`, (t) => {
    t.deepEqual<unknown, unknown>(parseJob(JSON.parse(JSON.stringify(job(kind)))), job(kind));
  });

  test(`a job of kind ${kind} without one of its fields is refused`, (t) => {
    for (const field of Object.keys(job(kind))) {
      const { [field]: _, ...rest } = job(kind);
      t.throws(() => parseJob(rest), { instanceOf: AppError, code: 'bad_request' }, field);
    }
    for (const field of Object.keys(payloads[kind] ?? {})) {
      const { [field]: _, ...payload } = payloads[kind] as Record<string, unknown>;
      t.throws(() => parseJob({ ...job(kind), payload }), { instanceOf: AppError }, field);
    }
  });

  test(`a job of kind ${kind} with nonsense in a field is either read or refused`, (t) => {
    const field = fc.constantFrom(...Object.keys(job(kind)));
    fc.assert(
      fc.property(field, fc.jsonValue(), (name, value) => {
        try {
          parseJob({ ...job(kind), [name]: value });
        } catch (error) {
          t.true(error instanceof AppError);
        }
      }),
    );
    t.pass();
  });
}

test('data that is not a job is refused with a code', (t) => {
  fc.assert(
    fc.property(fc.anything(), (value) => {
      t.throws(() => parseJob(value), { instanceOf: AppError, code: 'bad_request' });
    }),
  );
  t.pass();
});

const refused = test.macro({
  exec(t, change: object) {
    t.throws(() => parseJob({ ...job('disk.create'), ...change }), { instanceOf: AppError });
  },
  title: (_given, change: object) => `refused: ${JSON.stringify(change)}`,
});

test(refused, { kind: 'disk.format' });
test(refused, { kind: 'constructor' });
test(refused, { kind: '__proto__' });
test(refused, { payload: { ...disk, diskId: '../../etc' } });
test(refused, { payload: { ...disk, accountId: 'acct-x' } });
test(refused, { replyTo: 'node-x' });
test(refused, { deadlineAt: -1 });
test(refused, { deadlineAt: '1' });
test(refused, { id: 'a:b' });
