/* Certificate files that are replaced while a process uses them. */
import { rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import pino from 'pino';
import { Certificates } from '../../../shared/tls/certificates.ts';
import { TestAuthority } from '../../helpers/certificates.ts';
import { temporaryDirectory } from '../../helpers/temporary.ts';
import { waitFor } from '../../helpers/wait.ts';

test('a replaced certificate is read, however much is written beside it', async (t) => {
  await using directory = await temporaryDirectory();
  const authority = await TestAuthority.create('authority');
  const [first, next] = await Promise.all([
    authority.issue(directory.path, 'first', ['localhost']),
    authority.issue(directory.path, 'next', ['localhost']),
  ]);
  const log = pino({ level: 'silent' });
  const certificates = await Certificates.open({ certPath: first.cert, keyPath: first.key }, log);
  t.teardown(() => certificates.close());
  const warnings: string[] = [];
  const note = ({ message }: Error): void => void warnings.push(message);
  process.on('warning', note);
  t.teardown(() => process.off('warning', note));

  const before = certificates.contents.cert;
  for (let round = 0; round < 5000; round += 1) {
    await writeFile(join(directory.path, `log-${round % 10}`), 'a line');
  }
  await rename(next.key, first.key);
  await rename(next.cert, first.cert);
  await waitFor('the next certificate', () =>
    Promise.resolve(!certificates.contents.cert.equals(before)),
  );
  t.deepEqual(warnings, []);
});
