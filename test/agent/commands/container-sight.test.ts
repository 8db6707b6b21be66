/* A container's view of the kernel while other disks of the host are in use. */
import { open, readdir, readFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import test from 'ava';
import { openContainers, runInContainer } from '../../helpers/containers.ts';
import { mountDisk } from '../../helpers/mounted-disk.ts';

/** The loop device that stands on the image. */
async function deviceOf(image: string): Promise<string> {
  for (const name of await readdir('/sys/block')) {
    const file = join('/sys/block', name, 'loop/backing_file');
    if ((await readFile(file, 'utf8').catch(() => '')).trim() === image) return name;
  }
  throw new Error(`no device stands on ${image}`);
}

// All names, then all that can be read, of everything but processes, memory, and loads.
const LOOK = `
  find /proc /sys -not -path '/proc/[0-9]*' -not -path '/proc/self/*' \\
    -not -path '/proc/thread-self/*' 2>/dev/null | sort
  echo ----
  cd /tmp && find /proc /sys -type f -not -path '/proc/[0-9]*' -not -path '*/task/*' \\
    -exec timeout 5 head -qc 100000 {} + 2>/dev/null
  cat /proc/[0-9]*/mountinfo /proc/[0-9]*/mounts`;

test('another disk’s use shows nowhere in /proc and /sys', async (t) => {
  await using containers = await openContainers();
  const before = await runInContainer(containers.host, LOOK);
  await using disk = await mountDisk();
  const device = await deviceOf(disk.image);
  await using file = await open(join(disk.layout.contents, 'file'), 'w');
  await file.writeFile('used');
  await file.sync();
  const during = await runInContainer(containers.host, LOOK);
  const [names = '', contents = ''] = during.stdout.split('----\n');
  t.regex(names, /^\/proc\/meminfo$/mu);
  t.regex(contents, /MemTotal/u);
  t.is(names, before.stdout.split('----\n')[0] ?? '');
  for (const text of [device, disk.image, basename(disk.image), disk.mount]) {
    t.false(`${names}${contents}`.includes(text), text);
  }
});
