import { join } from 'node:path';
import test from 'ava';
import { pino } from 'pino';
import { bringExecImage, checkExecImage } from '../../../agent/commands/exec-image.ts';
import { ImageFailure } from '../../../agent/images/image-source.ts';
import { openContainers, runInContainer } from '../../helpers/containers.ts';
import { builtImage, DIGEST, InMemoryImages } from '../../helpers/in-memory-images.ts';
import { temporaryDirectory } from '../../helpers/temporary.ts';
import { makeTinyImage } from '../../helpers/tiny-image.ts';

const log = pino({ level: 'silent' });
const reference = 'registry.example/tools:1';

test('an image without bash is refused with a message that says so', async (t) => {
  await using containers = await openContainers();
  await using directory = await temporaryDirectory();
  const { tree } = await makeTinyImage(join(directory.path, 'image'), 'tiny');
  const host = { ...containers.host, imageDir: tree };
  await t.throwsAsync(checkExecImage(reference, host), {
    message: /^EXEC_IMAGE registry\.example\/tools:1 cannot be used: commands run in bash/u,
  });
  await t.notThrowsAsync(checkExecImage(reference, containers.host));
});

test('commands have the variables of the image besides the usual ones', async (t) => {
  await using containers = await openContainers();
  const environment = { TOOLS_HOME: '/opt/tools', LANG: 'C' };
  const host = { ...containers.host, environment };
  const { stdout } = await runInContainer(host, 'echo $TOOLS_HOME $LANG $HOME');
  t.is(stdout, '/opt/tools C /root\n');
});

test('the image of the last start is used when the registry does not answer', async (t) => {
  await using directory = await temporaryDirectory();
  const images = new InMemoryImages();
  const parts = { builder: images, dataDir: directory.path, log };
  images.build = async () => builtImage();
  t.is((await bringExecImage(reference, parts)).image.digest, DIGEST);
  images.build = async ({ digest }) => {
    if (digest === undefined) throw new ImageFailure('interrupted', 'the registry is silent');
    return builtImage({ digest });
  };
  t.is((await bringExecImage(reference, parts)).image.digest, DIGEST);
  await t.throwsAsync(bringExecImage('registry.example/other:1', parts), {
    message: /^EXEC_IMAGE registry\.example\/other:1 cannot be used: the registry is silent/u,
  });
});

test('an image that the registry does not have any more is not replaced by a former one', async (t) => {
  await using directory = await temporaryDirectory();
  const images = new InMemoryImages();
  const parts = { builder: images, dataDir: directory.path, log };
  images.build = async () => builtImage();
  await bringExecImage(reference, parts);
  images.build = () => InMemoryImages.refuse();
  await t.throwsAsync(bringExecImage(reference, parts), { message: /no such image/u });
});
