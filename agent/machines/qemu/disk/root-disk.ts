import { mkdir, open, rename, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { ignoring } from '../../../../shared/errors.ts';
import { exists } from '../../../system/exists.ts';
import { syncPath } from '../../../system/write-durably.ts';

/*
 * An empty layer of a root disk: a qcow2 file of the same virtual size as the base image, written
 * here because qemu-img takes longer to start than this takes in all. Its header names no backing
 * file: QEMU's arguments do (qemu-arguments.ts). QEMU describes the format in
 * docs/interop/qcow2.txt.
 */
const MAGIC = 0x51_46_49_fb;
const VERSION = 3;
const CLUSTER_BITS = 16;
const CLUSTER_BYTES = 2 ** CLUSTER_BITS;
const HEADER_BYTES = 104;
const REFCOUNT_ORDER = 4; // 16 bits for each cluster.
/** The cluster of each part; each part takes one. */
const CLUSTER = { header: 0, refcountTable: 1, refcounts: 2, mappings: 3 } as const;
const CLUSTERS = 4;

/** How many bytes of the disk one entry of the level-1 table maps. */
const BYTES_PER_MAPPING = CLUSTER_BYTES * (CLUSTER_BYTES / 8);

/** The contents of an empty layer. */
export function emptyLayer(sizeBytes: number): Buffer {
  const mappings = Math.ceil(sizeBytes / BYTES_PER_MAPPING);
  if (mappings > CLUSTER_BYTES / 8)
    throw new RangeError('the disk is too large for a level-1 table of one cluster');
  const image = Buffer.alloc(CLUSTERS * CLUSTER_BYTES);
  image.writeUInt32BE(MAGIC, 0);
  image.writeUInt32BE(VERSION, 4);
  image.writeUInt32BE(CLUSTER_BITS, 20);
  image.writeBigUInt64BE(BigInt(sizeBytes), 24);
  image.writeUInt32BE(mappings, 36);
  image.writeBigUInt64BE(BigInt(CLUSTER.mappings * CLUSTER_BYTES), 40);
  image.writeBigUInt64BE(BigInt(CLUSTER.refcountTable * CLUSTER_BYTES), 48);
  image.writeUInt32BE(1, 56);
  image.writeUInt32BE(REFCOUNT_ORDER, 96);
  image.writeUInt32BE(HEADER_BYTES, 100);
  const refcounts = CLUSTER.refcounts * CLUSTER_BYTES;
  image.writeBigUInt64BE(BigInt(refcounts), CLUSTER.refcountTable * CLUSTER_BYTES);
  for (let cluster = 0; cluster < CLUSTERS; cluster++) {
    image.writeUInt16BE(1, refcounts + cluster * 2);
  }
  return image;
}

/**
 * Makes the file of an empty layer; most of it is a hole. Not durable, and not complete after a
 * crash.
 */
async function writeLayer(path: string, base: string, uid: number): Promise<void> {
  const { size } = await stat(base);
  const image = emptyLayer(size);
  const file = await open(path, 'wx', 0o600);
  try {
    await file.truncate(image.length);
    for (let at = 0; at < image.length; at += CLUSTER_BYTES) {
      await file.write(image, at, HEADER_BYTES, at); // Nothing but zeros follows in any cluster.
    }
    await file.chown(uid, uid);
  } finally {
    await file.close();
  }
}

/**
 * Makes an empty layer in a directory of which nothing counts yet.
 * @returns paths that the caller must make durable
 */
export async function addRootDisk(
  directory: string,
  name: string,
  base: string,
  uid: number,
): Promise<string[]> {
  const path = join(directory, name);
  await writeLayer(path, base, uid);
  return [path, directory];
}

/**
 * Not the directory above it: that of a machine that another host has by now must not come back.
 */
const makeDirectory = async (path: string): Promise<void> => {
  await mkdir(path, { mode: 0o711 }).catch(ignoring('EEXIST'));
};

/**
 * Makes an empty layer that belongs to the machine's user, unless it exists; durable. The user can
 * write to the file but cannot create others beside it.
 */
export async function prepareRootDisk(
  directory: string,
  name: string,
  base: string,
  uid: number,
): Promise<void> {
  await makeDirectory(directory);
  const path = join(directory, name);
  if (await exists(path)) return;
  const partial = join(directory, `.${name}.partial`);
  await rm(partial, { force: true });
  await writeLayer(partial, base, uid);
  await syncPath(partial);
  await rename(partial, path);
  await syncPath(directory);
}

/** Whether a layer's file still has its initial size, so that nothing was ever written to it. */
export async function isEmptyLayer(path: string): Promise<boolean> {
  return (await stat(path)).size === CLUSTERS * CLUSTER_BYTES;
}
