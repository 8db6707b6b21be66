/* The addon's calls on files: MD5, whole writes, attributes, and arguments that are refused. */
import { createHash, randomBytes } from 'node:crypto';
import { readdirSync } from 'node:fs';
import { open, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import * as fc from '../../../helpers/fast-check.ts';
import { listDirectory } from '../../../../agent/disks/disk-calls.ts';
import { native } from '../../../../agent/native/native.ts';
import { mountDisk } from '../../../helpers/mounted-disk.ts';
import { temporaryDirectory } from '../../../helpers/temporary.ts';

test('MD5 is that of Node, however the bytes are cut, and goes on from its digest', async (t) => {
  const pieces = fc.array(fc.uint8Array({ maxLength: 200 }), { maxLength: 8 });
  await fc.assert(
    fc.asyncProperty(pieces, async (cut) => {
      const state = native.newMd5();
      const known = createHash('md5');
      for (const piece of cut) {
        known.update(piece);
        await native.addToMd5(state, [Buffer.from(piece), Buffer.alloc(0)]);
        t.deepEqual(native.digestMd5(state), known.copy().digest());
      }
    }),
  );
});

test('a write of many pieces is whole', async (t) => {
  await using directory = await temporaryDirectory();
  const file = await open(join(directory.path, 'file'), 'wx+');
  try {
    const chunks = Array.from({ length: 1024 }, (_, index) => randomBytes(index));
    await native.write(file.fd, 5, chunks);
    const bytes = await file.readFile();
    t.true(bytes.subarray(5).equals(Buffer.concat(chunks)));
    await native.write(file.fd, 0, []);
    await t.throwsAsync(native.write(1_000_000, 0, chunks), { code: 'EBADF' });
  } finally {
    await file.close();
  }
});

/** XATTR_SIZE_MAX of linux/limits.h. */
const KERNEL_BYTES_MAX = 65_536;

test('attributes up to what ext4 takes, and listings that carry them', async (t) => {
  await using disk = await mountDisk();
  const file = await open(join(disk.layout.contents, 'file'), 'wx+');
  try {
    const name = 'trusted.berth.test';
    t.is(await native.getAttribute(file.fd, name), undefined);
    for (const length of [0, 1, 512, 513, 3000, 4096]) {
      const value = randomBytes(length);
      await native.setAttribute(file.fd, name, value);
      t.deepEqual(await native.getAttribute(file.fd, name), value);
      const empty = Buffer.alloc(0);
      const args = ['', empty, empty, 10, name] as const;
      const { entries } = await listDirectory(disk.layout.contents, ...args);
      t.like(entries, [{ name: 'file', isDirectory: false, record: value }]);
    }
    const longest = randomBytes(KERNEL_BYTES_MAX - 16); // ext4 needs the rest.
    await native.setAttribute(file.fd, name, longest);
    t.deepEqual(await native.getAttribute(file.fd, name), longest);
    const long = async () => native.setAttribute(file.fd, name, Buffer.alloc(KERNEL_BYTES_MAX + 1));
    await t.throwsAsync(long);
  } finally {
    await file.close();
  }
});

test('a root that is gone is no missing file', async (t) => {
  await t.throwsAsync(native.openBeneath('/nowhere/at/all', 'x', 0), { code: 'EIO' });
  await t.throwsAsync(native.openBeneath('/proc/self/status', 'x', 0), { code: 'EIO' });
});

const descriptors = (): number => readdirSync('/proc/self/fd').length;

test.serial('a directory is read in slices, and closed whenever its listing is', async (t) => {
  await using directory = await temporaryDirectory();
  const names = Array.from(
    { length: 3000 },
    (_, index) => `name-${String(index).padStart(5, '0')}`,
  );
  for (const name of names) await writeFile(join(directory.path, name), '');
  const before = descriptors();
  const request = [directory.path, '', Buffer.alloc(0), Buffer.alloc(0), 2000, 'user.x'] as const;
  const listing = native.newListing(...request);
  let slices = 1;
  let page = await native.readListing(listing, 0);
  for (; page === undefined; slices += 1) page = await native.readListing(listing, 0);
  t.true(slices > 1);
  t.deepEqual(
    page.entries.map(({ name }) => name),
    names.slice(0, 2000),
  );
  t.is(String(page.after), 'name-01999');
  native.closeListing(listing);
  const abandoned = native.newListing(...request);
  t.is(await native.readListing(abandoned, 0), undefined);
  native.closeListing(abandoned);
  t.is(descriptors(), before);
  await t.throwsAsync(native.readListing(abandoned, 0), { code: 'EBADF' });
});

test('arguments of the wrong kind are refused', (t) => {
  const untyped = native as unknown as Record<string, (...args: unknown[]) => unknown>;
  const calls = {
    openBeneath: ['/', 'x\0y', 0],
    write: [1, 0, ['text']],
    writeBack: [1, -1, 0],
    copyRange: [1, 2, 0, 0, -1],
    getAttribute: [1, 2],
    setAttribute: [1, 'user.x', 'text'],
    addToMd5: [Buffer.alloc(3), []],
    digestMd5: [Buffer.alloc(3)],
    newListing: ['/', '', Buffer.alloc(0), Buffer.alloc(0), 0, 'user.x'],
    readListing: [{}, 20],
    closeListing: [{}],
  };
  for (const [name, args] of Object.entries(calls)) {
    t.throws(() => untyped[name]?.(...args), { code: 'EINVAL' }, name);
    t.throws(() => untyped[name]?.(), { code: 'EINVAL' }, name);
    t.throws(() => untyped[name]?.({}, [], null, 7, 8, 9), { code: 'EINVAL' }, name);
  }
  t.throws(() =>
    native.write(
      1,
      0,
      Array.from({ length: 1025 }, () => Buffer.alloc(0)),
    ),
  );
});
