/* The stored parts of an object, on a real file system. */
import { open } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { readPartTable, storePartTable } from '../../../../../agent/edge/s3/store/part-table.ts';
import type { StoredPart } from '../../../../../agent/edge/s3/store/upload-files.ts';
import { EDGE_LIMITS } from '../../../../../agent/edge/limits.ts';
import { mountDisk } from '../../../../helpers/mounted-disk.ts';
import { MiB } from '../../../../../shared/units.ts';

const partOf = (index: number, sizeBytes: number, digest?: Buffer): StoredPart => ({
  ...{ name: '', partNumber: index + 1, etag: '', modifiedAt: new Date(0), sizeBytes },
  ...(digest === undefined ? {} : { checksum: { algorithm: 'sha256', value: digest } }),
});

const digestOf = (index: number): Buffer => Buffer.alloc(32, index % 256);

test('as many parts as an object may have are kept, each of a size of its own', async (t) => {
  await using disk = await mountDisk();
  await using file = await open(join(disk.layout.contents, 'object'), 'w');
  const sizes = Array.from(
    { length: EDGE_LIMITS.partsPerUploadMax },
    (_, index) => EDGE_LIMITS.objectPutBytesMax - index * 500_000,
  );
  const parts = sizes.map((sizeBytes, index) => partOf(index, sizeBytes));
  await storePartTable(file.fd, 'etag', parts);
  const found = (await readPartTable(file.fd, 'etag')) ?? [];
  t.deepEqual(
    found.map(({ sizeBytes }) => sizeBytes),
    sizes,
  );
  let start = 0;
  for (const part of found) {
    if (part.start !== start) t.fail(`a part starts at ${part.start}, not at ${start}`);
    start += part.sizeBytes;
  }
  t.is(await readPartTable(file.fd, 'another'), undefined);
});

test('the checksums of parts are kept with their sizes, or else the sizes alone', async (t) => {
  await using disk = await mountDisk();
  for (const [count, hasChecksums] of [
    [500, true],
    [5000, false],
  ] as const) {
    await using file = await open(join(disk.layout.contents, `object-${count}`), 'w');
    const parts = Array.from({ length: count }, (_, index) =>
      partOf(index, 5 * MiB + index, digestOf(index)),
    );
    await storePartTable(file.fd, 'etag', parts);
    const found = (await readPartTable(file.fd, 'etag')) ?? [];
    t.is(found.length, count);
    const value = hasChecksums ? digestOf(count - 1).toString('base64') : undefined;
    t.is(found.at(-1)?.sizeBytes, 5 * MiB + count - 1);
    t.is(found.at(-1)?.checksum?.value, value);
  }
});
