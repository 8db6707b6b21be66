/*
 * Copies of images on the storage that hosts share: a machine keeps the image that its disk stands
 * on, whatever hosts link, remove and copy at the same time.
 */
import { randomBytes } from 'node:crypto';
import { mkdir, readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import {
  type BaseHost,
  copyBase,
  findBase,
  giveBase,
  keepBase,
  moveBase,
  readBase,
  standsOnCopy,
} from '../../../../../agent/machines/qemu/disk/disk-base.ts';
import { baseLinkOf, DiskBases } from '../../../../../agent/machines/qemu/disk/disk-bases.ts';
import { interceptFailpoints } from '../../../../../agent/system/failpoint.ts';
import { temporaryDirectory } from '../../../../helpers/temporary.ts';

const { serial } = test; // Failpoints are of the process.

test.afterEach.always(() => interceptFailpoints(undefined));

interface Host extends BaseHost {
  readonly bases: DiskBases;
}

/** A storage, and hosts whose default images may differ. */
async function newStorage() {
  const directory = await temporaryDirectory();
  const { path } = directory;
  const copies = join(path, 'bases');
  await mkdir(copies);
  let count = 0;
  const image = async (contents: Buffer): Promise<string> => {
    const file = join(path, `image-${(count += 1)}`);
    await writeFile(file, contents);
    return file;
  };
  return Object.assign(directory, {
    ...{ copies, image },
    host: async (contents: Buffer): Promise<Host> => {
      const rootDisk = await image(contents);
      return { rootDisk, bases: new DiskBases(copies, `host-${count}`) };
    },
    machine: async (): Promise<string> => {
      const machine = join(path, `machine-${(count += 1)}`);
      await mkdir(machine);
      return machine;
    },
  });
}

const contents = (): Buffer => randomBytes(25 * 4096);
const before = (point: string, work: () => Promise<unknown>): void => {
  let isReached = false;
  interceptFailpoints(async (reached) => {
    if (reached !== `before ${point}` || isReached) return;
    isReached = true;
    await work();
  });
};

/** A machine's disk stands on the right image, also when its host's own is gone. */
async function checkBase(t: ExecutionContext, machine: string, image: Buffer): Promise<void> {
  const base = await readBase(machine);
  const link = baseLinkOf(machine, base?.copy ?? '');
  t.true(image.equals(await readFile(link)));
  const elsewhere = { rootDisk: '/nowhere' };
  t.true(image.equals(await readFile((await findBase(machine, elsewhere)).path)));
}

serial('an image is copied once, and each machine has a link of its own', async (t) => {
  await using storage = await newStorage();
  const image = contents();
  const [a, b] = [await storage.host(image), await storage.host(image)];
  const machines = [await storage.machine(), await storage.machine(), await storage.machine()];
  await Promise.all(
    machines.map((machine, index) => {
      const host = index === 0 ? a : b;
      return giveBase(machine, host.rootDisk, host);
    }),
  );
  const [copy = '', ...others] = await readdir(storage.copies);
  t.deepEqual(others, []);
  for (const machine of machines) await checkBase(t, machine, image);
  // Two hosts that copy at once may each have linked their own.
  await Promise.all(machines.map((machine) => rm(baseLinkOf(machine, copy))));
  for (const machine of machines) t.is(await a.bases.hold(machine, a.rootDisk), copy);
  t.is((await stat(join(storage.copies, copy))).nlink, 4);
  t.deepEqual(await b.bases.unused(), []);
  for (const machine of machines) await rm(machine, { recursive: true });
  t.deepEqual(
    (await b.bases.unused()).map(({ name }) => name),
    [copy],
  );
});

serial(
  'a machine that links while the copy is removed keeps it; the next makes it anew',
  async (t) => {
    await using storage = await newStorage();
    const image = contents();
    const [a, b] = [await storage.host(image), await storage.host(image)];
    const [gone, linked, next] = [
      await storage.machine(),
      await storage.machine(),
      await storage.machine(),
    ];
    await giveBase(gone, a.rootDisk, a);
    await rm(gone, { recursive: true });
    const [unused] = await a.bases.unused();
    before('evict base', () => giveBase(linked, b.rootDisk, b));
    await a.bases.remove(unused?.name ?? '');
    t.deepEqual(await readdir(storage.copies), [], 'the name is gone');
    await checkBase(t, linked, image);
    await giveBase(next, a.rootDisk, a);
    t.deepEqual(await readdir(storage.copies), [unused?.name]);
    await checkBase(t, next, image);
    await checkBase(t, linked, image);
  },
);

serial('a copy that is removed before it is linked to is made anew', async (t) => {
  await using storage = await newStorage();
  const image = contents();
  const host = await storage.host(image);
  const name = await host.bases.nameOf(host.rootDisk);
  const machine = await storage.machine();
  await host.bases.hold(await storage.machine(), host.rootDisk);
  before('link base', () => host.bases.remove(name));
  await giveBase(machine, host.rootDisk, host);
  await checkBase(t, machine, image);
  interceptFailpoints(async (point) => {
    if (point === 'before link base') await rm(join(storage.copies, name), { force: true });
  });
  const other = await storage.machine();
  await t.throwsAsync(giveBase(other, host.rootDisk, host), {
    message: /as often as it was made/u,
  });
  t.deepEqual(await readdir(other), [], 'no record names what it has no link to');
});

serial(
  'a machine that another host has by now gets nothing, and nothing is copied for it',
  async (t) => {
    await using storage = await newStorage();
    const host = await storage.host(contents());
    const machine = await storage.machine();
    await rename(machine, `${machine}-moved`);
    await t.throwsAsync(giveBase(machine, host.rootDisk, host), { code: 'ENOENT' });
    t.deepEqual(await readdir(storage.copies), []);
  },
);

serial(
  'a link moves with its machine, to hosts with the same default image and another',
  async (t) => {
    await using storage = await newStorage();
    const image = contents();
    const [from, same, other] = [
      await storage.host(image),
      await storage.host(image),
      await storage.host(contents()),
    ];
    const machine = await storage.machine();
    await giveBase(machine, from.rootDisk, from);
    const [copy = ''] = await readdir(storage.copies);
    for (const [index, host] of [same, other, same, other].entries()) {
      const moved = `${machine}-${index}`;
      await rename(index === 0 ? machine : `${machine}-${index - 1}`, moved);
      await moveBase(moved, host);
      t.is((await findBase(moved, host)).path, host === same ? same.rootDisk : join(moved, copy));
      t.is(await standsOnCopy(moved, host), host === other);
      await checkBase(t, moved, image);
    }
    t.deepEqual(
      await readdir(storage.copies),
      [copy],
      'the other host’s default image is not copied',
    );
  },
);

serial('a copy of a machine has a link of its own, also when the name is gone', async (t) => {
  await using storage = await newStorage();
  const image = contents();
  const [from, other] = [await storage.host(image), await storage.host(contents())];
  const [source, copy] = [await storage.machine(), await storage.machine()];
  await giveBase(source, from.rootDisk, from);
  await moveBase(source, other);
  const base = await findBase(source, other);
  await other.bases.remove(base.copy ?? '');
  const made = await copyBase({ directory: source, base }, copy, other);
  t.is(made.base.path, baseLinkOf(copy, base.copy ?? ''));
  await rm(source, { recursive: true });
  await checkBase(t, copy, image);
});

serial('an image that is built anew at the same path has a copy of its own', async (t) => {
  await using storage = await newStorage();
  const images = [contents(), contents()];
  const host = await storage.host(images[0] ?? Buffer.alloc(0));
  const machines = [await storage.machine(), await storage.machine()];
  await giveBase(machines[0] ?? '', host.rootDisk, host);
  await rm(host.rootDisk);
  await writeFile(host.rootDisk, images[1] ?? '');
  await giveBase(machines[1] ?? '', host.rootDisk, host);
  t.is((await readdir(storage.copies)).length, 2);
  for (const [index, machine] of machines.entries())
    t.true(
      images[index]?.equals(
        await readFile(baseLinkOf(machine, (await readBase(machine))?.copy ?? '')),
      ),
    );
});

serial('a machine from before gets its link while there is a copy', async (t) => {
  await using storage = await newStorage();
  const image = contents();
  const host = await storage.host(image);
  const machine = await storage.machine();
  await giveBase(machine, host.rootDisk, host);
  const link = baseLinkOf(machine, (await readBase(machine))?.copy ?? '');
  await rm(link);
  const [unused] = await host.bases.unused();
  t.not(unused, undefined);
  for (let round = 0; round < 2; round += 1) await keepBase(machine, host.bases);
  await checkBase(t, machine, image);
  t.deepEqual(await host.bases.unused(), []);
  await rm(link);
  await host.bases.remove(unused?.name ?? '');
  await t.notThrowsAsync(keepBase(machine, host.bases), 'there is nothing to keep');
  await writeFile(join(machine, 'base.json'), '{"path": 1}');
  await t.notThrowsAsync(keepBase(machine, host.bases), 'its disk cannot be used either');
});
