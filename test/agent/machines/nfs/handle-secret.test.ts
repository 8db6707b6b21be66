import { randomBytes } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import test from 'ava';
import { openHandleSecret } from '../../../../agent/machines/nfs/handle-secret.ts';
import { paths } from '../../../../agent/system/paths.ts';
import { temporaryDirectory } from '../../../helpers/temporary.ts';

const [former, present] = [randomBytes(32), randomBytes(32)];

test('the secret of a host stays the same while the keys that seal it change', async (t) => {
  await using directory = await temporaryDirectory();
  const path = paths.handleSecret(directory.path);
  const host = { path, owner: 'host-a', hasSandboxes: false };
  const secret = await openHandleSecret([former], host);
  t.is(secret.length, 32);
  t.notDeepEqual(secret, former);
  const stored = await readFile(path, 'utf8');
  t.false(stored.includes(secret.toString('base64')));
  t.deepEqual(await openHandleSecret([former, present], host), secret);
  t.is(await readFile(path, 'utf8'), stored);
  t.deepEqual(await openHandleSecret([present, former], host), secret);
  t.deepEqual(await openHandleSecret([present], host), secret, 'it was sealed anew');
  const message = /handle-secret was sealed with a key that ENCRYPTION_KEY lacks/u;
  await t.throwsAsync(() => openHandleSecret([former], host), { message });
  await t.throwsAsync(() => openHandleSecret([present], { ...host, owner: 'host-b' }), {
    message,
  });
});

test('a host with sandboxes begins with the key that their handles follow from', async (t) => {
  await using directory = await temporaryDirectory();
  const path = paths.handleSecret(directory.path);
  const host = { path, owner: 'host-a', hasSandboxes: true };
  t.deepEqual(await openHandleSecret([former, present], host), former);
  t.deepEqual(await openHandleSecret([present, former], host), former);
});
