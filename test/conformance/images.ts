/* Machines on an image other than the host's default one, whichever driver runs them. */
import { join } from 'node:path';
import type { TestFn } from 'ava';
import type { MachineSpec } from '../../agent/machines/driver.ts';
import { erase, outputOf } from '../helpers/machines.ts';
import { temporaryDirectory } from '../helpers/temporary.ts';
import { makeTinyImage } from '../helpers/tiny-image.ts';
import { type DriverContext, ownSpecs } from './lifecycle.ts';

const GRACE_MS = 10_000;
const never = new AbortController().signal;

const WHO = 'cat /marker; id -un; pwd; echo $HOME $FROM';

/** A spec that leaves the start of processes to the image. */
const asTheImageSays = (spec: MachineSpec): MachineSpec => ({
  ...spec,
  settings: { ...spec.settings, user: 'node', directory: '/srv/app', environment: { FROM: 'it' } },
});

export function testImages(test: TestFn<DriverContext>): void {
  test('a machine begins with its own image, keeps it, and forks have it, too', async (t) => {
    const { driver } = t.context;
    await using directory = await temporaryDirectory();
    const image = await makeTinyImage(join(directory.path, 'image'), 'tiny');
    const [first, second] = (await ownSpecs(t, 2)).map(asTheImageSays);
    if (first === undefined || second === undefined) return t.fail();
    await driver.prepare(first, image);
    const machine = await driver.start(first, never);
    machine.guest.setMaxListeners(0);
    t.is(await outputOf(machine, WHO), 'tinynode\n/srv/app\n/home/node it');
    t.is(await outputOf(machine, 'echo kept > /home/node/file; cat /home/node/file'), 'kept');
    t.like(await machine.stop(GRACE_MS), { reason: 'stopped' });
    await driver.reclaim(first.vmId);

    await driver.fork(first.vmId, second);
    await erase(driver, first.vmId);
    await driver.prepare(second); // Another image would change nothing: it has its disk.
    const copy = await driver.start(second, never);
    copy.guest.setMaxListeners(0);
    t.is(await outputOf(copy, 'cat /marker /home/node/file'), 'tinykept');
    await copy.kill();
    await erase(driver, second.vmId);
  });

  test('a prewarmed machine of an image becomes a sandbox with the defaults of that image', async (t) => {
    const { driver } = t.context;
    await using directory = await temporaryDirectory();
    const image = await makeTinyImage(join(directory.path, 'image'), 'tiny');
    const [spec] = await ownSpecs(t, 1);
    if (spec === undefined) return t.fail();
    await driver.prewarm(spec, never, image);
    const machine = await driver.start(asTheImageSays(spec), never);
    t.is(machine.origin?.kind, 'prewarmed');
    machine.guest.setMaxListeners(0);
    t.is(await outputOf(machine, WHO), 'tinynode\n/srv/app\n/home/node it');
    await machine.kill();
    await erase(driver, spec.vmId);
  });

  test('a machine whose image is gone does not start on another one', async (t) => {
    const { driver } = t.context;
    const [spec] = await ownSpecs(t, 1);
    if (spec === undefined) return t.fail();
    {
      await using directory = await temporaryDirectory();
      await driver.prepare(spec, await makeTinyImage(join(directory.path, 'image'), 'tiny'));
    }
    await t.throwsAsync(driver.start(spec, never), { message: /image .* is gone/u });
    await driver.reclaim(spec.vmId);
  });
}
