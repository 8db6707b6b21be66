/*
 * An image has one writer: the lock on the image, whoever attaches it and whenever they are killed.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, open, readdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { mountImage, unmountImage } from '../../../agent/disks/mount.ts';
import { mountsBelow } from '../../../agent/system/mount-table.ts';
import { diskProgramPath, leashPath } from '../../../agent/native/native.ts';
import { run } from '../../../agent/system/spawn.ts';
import { loopsOn } from '../../helpers/loops.ts';
import { FIRST_LOOP } from '../../helpers/mounted-disk.ts';
import { SlowAttach } from '../../helpers/slow-attach.ts';
import { temporaryDirectory } from '../../helpers/temporary.ts';
import { waitFor } from '../../helpers/wait.ts';

/** In the order in which an attachment makes them. */
const CALLS = ['flock', 'LOOP_CTL_ADD', 'LOOP_CONFIGURE', 'fsopen', 'fsconfig', 'fsmount'] as const;
const IN_USE = 4;

const slow = await SlowAttach.build();
test.after.always(() => slow[Symbol.asyncDispose]());

interface Scene extends AsyncDisposable {
  readonly path: string;
  readonly image: string;
  readonly target: string;
}

async function newImage(): Promise<Scene> {
  const directory = await temporaryDirectory();
  const { path } = directory;
  const [image, target] = [join(path, 'image.ext4'), join(path, 'mount')];
  await writeFile(image, '');
  await run('mke2fs', ['-q', '-t', 'ext4', '-F', image, '16M']);
  await mkdir(target);
  return Object.assign(directory, { image, target });
}

/** Attaches like the agent, but in a process of the test's own and with calls that can be slow. */
function attach({ image }: Scene, target: string, name: string): ChildProcess {
  const args = ['attach', image, target, String(FIRST_LOOP), '0'];
  const env = { ...process.env, ...slow.environment(name) };
  return spawn(diskProgramPath, args, { env, stdio: 'ignore' });
}

const exitOf = async (child: ChildProcess): Promise<number | null> => {
  const [code] = (await once(child, 'exit')) as [number | null];
  return code;
};

const isLocked = (image: string): Promise<boolean> =>
  run('flock', ['--nonblock', image, 'true']).then(
    () => false,
    () => true,
  );

test('the kernel holds the lock as long as the loop device stands', async (t) => {
  await using scene = await newImage();
  const { image, target } = scene;
  await mountImage(image, target, FIRST_LOOP);
  t.true(await isLocked(image)); // The process that attached it has ended.
  const file = await open(join(target, 'file'), 'w');
  const detached = await unmountImage(image, target);
  t.deepEqual(detached, { isFree: false, wasInUse: true });
  t.deepEqual(await mountsBelow(scene.path), []);
  t.true(await isLocked(image));
  await mkdir(target, { recursive: true });
  await t.throwsAsync(mountImage(image, target, FIRST_LOOP), { code: 'unavailable' });
  await file.close();
  await waitFor('the lock', async () => !(await isLocked(image)));
  t.deepEqual(loopsOn(image), []);
});

for (const call of CALLS) {
  test(`two attach one image, one of them slow at ${call}: one succeeds`, async (t) => {
    await using scene = await newImage();
    const name = `two-${call}`;
    const other = join(scene.path, 'other');
    await mkdir(other);
    await slow.arm(call, 300, name);
    const first = exitOf(attach(scene, scene.target, name));
    await slow.reached(name);
    await slow.disarm(name);
    const codes = [await exitOf(attach(scene, other, name)), await first];
    t.true(codes.includes(0) && codes.includes(IN_USE), codes.join(' '));
    t.is(loopsOn(scene.image).length, 1);
    const [mounted = ''] = await mountsBelow(scene.path);
    await unmountImage(scene.image, mounted);
  });

  test(`killed at ${call} an attachment leaves nothing`, async (t) => {
    await using scene = await newImage();
    const name = `killed-${call}`;
    await slow.arm(call, 60_000, name);
    const child = attach(scene, scene.target, name);
    const exited = exitOf(child);
    await slow.reached(name);
    child.kill('SIGKILL');
    await exited;
    await waitFor('the lock', async () => !(await isLocked(scene.image)));
    t.deepEqual(loopsOn(scene.image), []);
    t.deepEqual(await mountsBelow(scene.path), []);
  });
}

test('an image that somebody attached without the lock is left alone', async (t) => {
  await using scene = await newImage();
  const device = (await run('losetup', ['--find', '--show', scene.image])).trim();
  try {
    await t.throwsAsync(mountImage(scene.image, scene.target, FIRST_LOOP), {
      code: 'unavailable',
      message: /outside of Berth/u,
    });
    t.is(loopsOn(scene.image).length, 1);
    t.deepEqual(await readdir(scene.target), []);
    t.false(await isLocked(scene.image));
  } finally {
    await run('losetup', ['--detach', device]);
  }
});

test('a program on the leash ends with whoever started it', async (t) => {
  await using directory = await temporaryDirectory();
  const pidFile = join(directory.path, 'pid');
  const command = `'${leashPath}' $$ -- sh -c 'echo $$ > ${pidFile}; exec sleep 1000' & wait`;
  const parent = spawn('sh', ['-c', command], { stdio: 'ignore' });
  const exited = once(parent, 'exit');
  const text = (): Promise<string> => run('cat', [pidFile]).catch(() => '');
  const pid = await waitFor('the program', async () => Number(await text()) || undefined);
  parent.kill('SIGKILL');
  await exited;
  await waitFor('its end', async () => {
    const state = await run('ps', ['-o', 'stat=', '-p', String(pid)]).catch(() => 'Z');
    return state.startsWith('Z');
  });
  t.pass();
});

test('the leash starts nothing for an agent that is gone', async (t) => {
  await using directory = await temporaryDirectory();
  const file = join(directory.path, 'made');
  const start = (...args: string[]): Promise<string> => run(leashPath, [...args, 'touch', file]);
  await t.throwsAsync(start('1', '--'), { message: /ended with 126/u }); // Not our parent.
  const parent = String(process.pid);
  const removed = join(directory.path, 'removed/cgroup.procs');
  await t.throwsAsync(start(parent, '--group', removed, '--'), { message: /ended with 126/u });
  t.deepEqual(await readdir(directory.path), []);
});
