import test from 'ava';
import { toJobFailure } from '../../../agent/control-link/job-failure.ts';

const failed = (code: string): Error => Object.assign(new Error(`${code}: lstat`), { code });

test('after a failure of the storage only work that can be repeated may be tried again', (t) => {
  for (const code of ['ESHUTDOWN', 'ESTALE', 'EIO', 'EROFS', 'ENOTCONN']) {
    t.is(toJobFailure('disk.create', failed(code)).code, 'unavailable', code);
    t.is(toJobFailure('sandbox.create', failed(code)).code, 'outcome_unknown', code);
    t.is(toJobFailure('exec.run', failed(code)).code, 'outcome_unknown', code);
  }
});

test('other failures are told as they are for any work', (t) => {
  t.is(toJobFailure('disk.create', failed('ENOSPC')).code, 'host_full');
  const unexpected = toJobFailure('disk.create', failed('EINVAL'));
  t.is(unexpected.code, 'internal_server_error');
  t.false(unexpected.message.includes('lstat'));
});
