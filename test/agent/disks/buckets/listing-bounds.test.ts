/* Listings of storage that somebody else has, and that need not end. */
import test from 'ava';
import { ListingBounds } from '../../../../agent/disks/buckets/listing-bounds.ts';
import { DISK_LIMITS } from '../../../../agent/disks/limits.ts';

const objectOf = (key: string) => ({ key, sizeBytes: 0, etag: '"e"', modifiedMs: 0 });

/** Takes the page again and again, up to `count` times. @returns how often it was taken */
function take(page: readonly ReturnType<typeof objectOf>[], count: number): number {
  const bounds = new ListingBounds();
  for (let taken = 0; taken < count; taken += 1) {
    try {
      bounds.take(page);
    } catch {
      return taken;
    }
  }
  return count;
}

test('a listing of as many pages and keys as are allowed is taken, and no more', (t) => {
  const { bucketPagesMax: pages, bucketKeysMax: keys, bucketKeyBytesMax: bytes } = DISK_LIMITS;
  t.is(take([], pages + 1), pages);
  const folders = Array.from({ length: 1_000 }, (_, number) => objectOf(`${number}/`));
  t.is(take(folders, pages), keys / folders.length);
  const long = Array.from({ length: 1_000 }, () => objectOf('k'.repeat(1_024)));
  t.is(take(long, pages), Math.floor(bytes / (long.length * 1_024)));
});
