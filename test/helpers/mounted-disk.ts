import assert from 'node:assert';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { DiskFiles } from '../../agent/disks/disk-files.ts';
import { type DiskLayout, prepareLayout } from '../../agent/disks/disk-layout.ts';
import { mountImage, sweepLoops, unmountImage } from '../../agent/disks/mount.ts';
import { mountsBelow } from '../../agent/system/mount-table.ts';
import { clearUploads } from '../../agent/edge/s3/store/clear-uploads.ts';
import { ObjectStore } from '../../agent/edge/s3/store/object-store.ts';
import { newDiskRecord } from './disk-record.ts';
import { regionStorage } from './region-storage.ts';
import { temporaryDirectory } from './temporary.ts';
import { MiB } from '../../shared/units.ts';

/** The range of loop devices for tests that attach disks without an agent. */
export const FIRST_LOOP = 64 * 1024;

export interface MountedDisk extends AsyncDisposable {
  readonly image: string;
  readonly mount: string;
  readonly layout: DiskLayout;
  readonly store: ObjectStore;
  /** Unmounts the disk and attaches it again, as an agent does. */
  reattach(): Promise<void>;
}

/** A disk of the test's own on an image of its own, attached without an agent. */
export async function mountDisk(sizeBytes = 512 * MiB): Promise<MountedDisk> {
  const directory = await temporaryDirectory();
  const files = new DiskFiles(regionStorage(directory.path), sizeBytes, 'host-aaaaaaaaaaaa');
  await files.prepare();
  const record = newDiskRecord();
  await files.create(record);
  const image = files.imagePath(record.id);
  const mount = join(directory.path, 'mount');
  const attach = async (): Promise<DiskLayout> => {
    await mountImage(image, mount, FIRST_LOOP);
    const layout = await prepareLayout(mount);
    await clearUploads(layout);
    return layout;
  };
  const layout = await attach();
  return {
    image,
    mount,
    layout,
    store: new ObjectStore(layout),
    reattach: async () => {
      assert(!(await unmountImage(image, mount)).wasInUse);
      await attach();
    },
    [Symbol.asyncDispose]: async () => {
      for (const target of await mountsBelow(directory.path)) {
        const { wasInUse } = await unmountImage(image, target);
        assert(!wasInUse, 'the test failed to close something, or the store did');
      }
      await sweepLoops(FIRST_LOOP);
      await directory[Symbol.asyncDispose]();
    },
  };
}

/** A body in pieces of this size. */
export async function* bodyOf(
  content: string | Buffer,
  chunkBytes = 64 * 1024,
): AsyncGenerator<Buffer> {
  const bytes = Buffer.from(content);
  for (let start = 0; start < bytes.length; start += chunkBytes) {
    yield bytes.subarray(start, start + chunkBytes);
  }
}

/** The bytes of an object. */
export async function contentOf(store: ObjectStore, key: string): Promise<Buffer> {
  const opened = await store.open(key);
  try {
    return await readFile(`/proc/self/fd/${opened.fd}`);
  } finally {
    await opened.close();
  }
}
