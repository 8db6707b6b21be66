import { DISK_LIMITS } from '../limits.ts';
import { BucketError, type BucketObject } from './bucket.ts';
import { tooMany } from './problems.ts';

/** Ends listings that are longer than any of a bucket that a disk can show. */
export class ListingBounds {
  #pages = 0;
  #keys = 0;
  #keyBytes = 0;

  /** Counts a page. @throws BucketError when the listing is too long */
  take(page: readonly BucketObject[]): void {
    this.#pages += 1;
    this.#keys += page.length;
    for (const { key } of page) this.#keyBytes += Buffer.byteLength(key);
    if (this.#keys > DISK_LIMITS.bucketKeysMax || this.#keyBytes > DISK_LIMITS.bucketKeyBytesMax) {
      throw new BucketError('disk', tooMany('the bucket', 'keys'));
    }
    if (this.#pages > DISK_LIMITS.bucketPagesMax) {
      const max = DISK_LIMITS.bucketPagesMax;
      throw new BucketError('disk', `the bucket's listing has more than ${max} pages`);
    }
  }
}
