/*
 * How a host finds out whether its machines can use KVM. The guests are real and emulated:
 * emulation stands for KVM, and a file for its device.
 */
import { copyFile, mkdir, readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { pino } from 'pino';
import {
  HostAccelerator,
  type ProbeLimits,
  type ProbeOptions,
  readChoice,
} from '../../../../../agent/machines/qemu/process/accelerator.ts';
import { listMachineCgroups } from '../../../../../agent/machines/shim/machine-cgroup.ts';
import { detectCgroups, removeCgroups } from '../../../../../agent/system/cgroup.ts';
import { newHostId } from '../../../../../shared/ids.ts';
import { temporaryDirectory } from '../../../../helpers/temporary.ts';
import { waitFor } from '../../../../helpers/wait.ts';

const GUEST_DIR = process.env['GUEST_DIR'] ?? '';
const LIMITS: ProbeLimits = {
  ...{ bootMs: 120_000, silenceMs: 60_000, startMs: 120_000, retryMs: 600_000, lookMs: 50 },
};
const booted = { accelerator: 'kvm', reason: 'booted' } as const;
const timedOut = { accelerator: 'tcg', reason: 'timed_out' } as const;

interface Logged {
  readonly msg: string;
  readonly printed?: string;
}

/** A host that has not been probed, with the file that stands for the device. */
async function openScene(limits: Partial<ProbeLimits> = {}, guestDir = GUEST_DIR) {
  await using undo = new AsyncDisposableStack();
  const { path } = undo.use(await temporaryDirectory());
  const cgroups = await detectCgroups();
  const cgroupParent = `/berth-test/${newHostId()}`;
  undo.defer(() => removeCgroups(cgroups, cgroupParent));
  const [directory, device] = [join(path, 'data'), join(path, 'kvm')];
  await mkdir(directory);
  await writeFile(device, '');
  const logged: Logged[] = [];
  const log = pino({}, { write: (line: string) => logged.push(JSON.parse(line) as Logged) });
  const host = { guestDir, rootDisk: '', cgroups, cgroupParent };
  const options: ProbeOptions = {
    ...{ host, directory, uid: 700_000_000, log, device, tried: 'tcg' },
    limits: { ...LIMITS, ...limits },
  };
  const opened: HostAccelerator[] = [];
  undo.defer(async () => {
    for (const each of opened) await each.close();
  });
  const stack = undo.move();
  return {
    ...{ path, directory, device, logged },
    open: async (changes: Partial<ProbeOptions> = {}): Promise<HostAccelerator> => {
      const accelerator = await HostAccelerator.open('auto', { ...options, ...changes });
      opened.push(accelerator);
      return accelerator;
    },
    set: (asked: 'kvm' | 'tcg') => HostAccelerator.open(asked, options),
    machines: () => listMachineCgroups(cgroups, cgroupParent),
    [Symbol.asyncDispose]: () => stack.disposeAsync(),
  };
}

/** A guest whose kernel finds nothing to run: it says so, and prints nothing more. */
async function brokenGuest(path: string): Promise<string> {
  const directory = join(path, 'guest');
  await mkdir(directory);
  await copyFile(join(GUEST_DIR, 'vmlinuz'), join(directory, 'vmlinuz'));
  await writeFile(join(directory, 'initramfs'), '');
  return directory;
}

test('an accelerator that is set is not probed', async (t) => {
  await using scene = await openScene();
  t.deepEqual((await scene.set('tcg')).choice, { accelerator: 'tcg', reason: 'set' });
  t.deepEqual((await scene.set('kvm')).usable, ['kvm', 'tcg']);
  t.deepEqual(await readdir(scene.directory), []);
});

test.serial('the host is tried out once, and nothing is left of it', async (t) => {
  t.timeout(180_000);
  await using scene = await openScene();
  t.deepEqual((await scene.open()).choice, booted);
  t.deepEqual(await scene.machines(), []);
  t.deepEqual(await readdir(scene.directory), ['accelerator.json']);
  t.deepEqual(await readChoice(scene.directory), booted);
  t.deepEqual(
    (await scene.open({ tried: 'kvm', limits: { ...LIMITS, bootMs: 1 } })).choice,
    booted,
  );
});

test.serial('a guest that prints nothing more is given up, and its words are logged', async (t) => {
  t.timeout(180_000);
  await using place = await temporaryDirectory();
  await using scene = await openScene({ silenceMs: 3000 }, await brokenGuest(place.path));
  t.deepEqual((await scene.open()).choice, timedOut);
  const warned = scene.logged.find(({ msg }) => msg === 'accelerator:kvmUnusable');
  t.regex(warned?.printed ?? '', /Kernel panic/u);
  t.deepEqual(await scene.machines(), []);
});

test.serial(
  'the start does not wait for a slow guest, and machines use KVM once it has booted',
  async (t) => {
    t.timeout(180_000);
    await using scene = await openScene({ startMs: 1 });
    const accelerator = await scene.open();
    t.deepEqual(accelerator.choice, { accelerator: 'tcg', reason: 'probing' });
    t.deepEqual(accelerator.usable, ['tcg']);
    await waitFor('the guest', async () => accelerator.choice.reason === 'booted', 120_000);
    t.deepEqual(accelerator.usable, ['kvm', 'tcg']);
  },
);

test.serial('a time-out is tried once more, then it stands', async (t) => {
  t.timeout(180_000);
  await using scene = await openScene({ bootMs: 1, retryMs: 100 });
  const accelerator = await scene.open();
  t.deepEqual(accelerator.choice, timedOut);
  const tries = async (): Promise<unknown> => {
    const text = await readFile(join(scene.directory, 'accelerator.json'), 'utf8');
    return (JSON.parse(text) as { tries: unknown }).tries;
  };
  await waitFor('the second try', async () => (await tries()) === 2, 60_000);
  t.deepEqual(accelerator.choice, timedOut);
  t.deepEqual((await scene.open({ limits: LIMITS })).choice, timedOut);
  const warned = scene.logged.filter(({ msg }) => msg === 'accelerator:kvmUnusable');
  t.is(warned.length, 2);
});

test.serial('a time-out of a busy host is mended by the second try', async (t) => {
  t.timeout(180_000);
  await using scene = await openScene({ bootMs: 1 });
  const first = await scene.open();
  t.deepEqual(first.choice, timedOut);
  await first.close();
  // The next agent of the same boot.
  const accelerator = await scene.open({ limits: { ...LIMITS, retryMs: 100 } });
  await waitFor('the guest', async () => accelerator.choice.reason === 'booted', 120_000);
  t.deepEqual(await readChoice(scene.directory), booted);
});

test.serial('a device that appears later is tried once', async (t) => {
  t.timeout(180_000);
  await using scene = await openScene();
  const device = join(scene.path, 'later');
  const accelerator = await scene.open({ device });
  t.deepEqual(accelerator.choice, { accelerator: 'tcg', reason: 'no_device' });
  t.deepEqual(await readdir(scene.directory), []);
  await writeFile(device, '');
  await waitFor('the guest', async () => accelerator.choice.reason === 'booted', 120_000);
});

test.serial('a QEMU that cannot run a guest is not tried again', async (t) => {
  t.timeout(180_000);
  await using place = await temporaryDirectory();
  const guestDir = join(place.path, 'guest');
  await mkdir(guestDir);
  await using scene = await openScene({ retryMs: 1 }, guestDir);
  t.deepEqual((await scene.open()).choice, { accelerator: 'tcg', reason: 'failed' });
  const warned = scene.logged.find(({ msg }) => msg === 'accelerator:kvmUnusable');
  t.regex(warned?.printed ?? '', /vmlinuz/u);
});
