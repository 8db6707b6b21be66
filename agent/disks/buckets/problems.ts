import { DISK_LIMITS } from '../limits.ts';
import { MiB } from '../../../shared/units.ts';

/** Says that a disk or a bucket has more names than can be compared. */
export function tooMany(place: string, names: string): string {
  const { bucketKeysMax: count, bucketKeyBytesMax: bytes } = DISK_LIMITS;
  return `${place} has more than ${count} ${names}, or they take more than ${bytes / MiB} MiB`;
}

interface Problem {
  readonly key: string;
  readonly reason: string;
}

/** Keys that the disk cannot show, and names that cannot be keys: the first ones and how many. */
export class PathProblems {
  readonly #first = new Map<string, string>();
  count = 0;

  note(key: string, reason: string): void {
    this.count += 1;
    if (this.#first.size < DISK_LIMITS.bucketProblemsShownMax) this.#first.set(key, reason);
  }

  get first(): Problem[] {
    return [...this.#first].map(([key, reason]) => ({ key, reason }));
  }
}
