/* The images that a host finds when its agent starts. */
import { mkdir, readdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { openDefaultImage } from '../../../agent/images/default-image.ts';
import { ImageStore } from '../../../agent/images/image-store.ts';
import { createLogger } from '../../../shared/log.ts';
import { defaultImageDir } from '../../helpers/image-host.ts';
import { mountSmall } from '../../helpers/small-storage.ts';
import { temporaryDirectory } from '../../helpers/temporary.ts';

test('half an image that cannot be removed keeps no whole one from being found', async (t) => {
  await using temporary = await temporaryDirectory();
  const directory = join(temporary.path, 'images');
  const digest = `sha256:${'a'.repeat(64)}`;
  const whole = join(directory, `sha256-${'a'.repeat(64)}`);
  await mkdir(whole, { recursive: true });
  const config = { env: {}, workingDir: '/', user: '' };
  await writeFile(join(whole, 'image.json'), JSON.stringify({ digest, platform: 'amd64', config }));
  const defaultImage = await openDefaultImage(await defaultImageDir(), undefined);
  const open = () =>
    ImageStore.open({ directory, defaultImage, firstLoop: 0, log: createLogger('test', {}) });
  const mount = mountSmall(join(directory, '.partial-1', 'root'), 1);
  try {
    await mkdir(join(directory, '.partial-2'));
    t.true((await open()).has(digest));
    t.false((await readdir(directory)).includes('.partial-2'));
  } finally {
    mount.unmount();
  }
  await open();
  t.deepEqual(await readdir(directory), [`sha256-${'a'.repeat(64)}`]);
});
