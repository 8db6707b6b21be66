import { DISK_LIMITS } from '../limits.ts';
import type { BucketError } from './bucket.ts';
import { PathProblems } from './problems.ts';

interface Refusal {
  /** The refused file's ctime, 0 for a removal. A file with another one is tried at once. */
  readonly ctimeNs: bigint;
  readonly failure: BucketError;
  /** When the file, as it is, was refused first: by `performance.now()`. */
  readonly sinceMs: number;
  readonly pauseMs: number;
  readonly retryAtMs: number;
}

/** Files that the bucket does not take while it takes others. Each is tried again after a pause. */
export class Refusals {
  readonly #byPath = new Map<string, Refusal>();

  get size(): number {
    return this.#byPath.size;
  }

  /** Whether it is time to try one again. */
  get isDue(): boolean {
    const now = performance.now();
    return [...this.#byPath.values()].some(({ retryAtMs }) => retryAtMs <= now);
  }

  /** Whether the file was refused as it is, and rests. */
  isResting(path: string, ctimeNs: bigint): boolean {
    const refusal = this.#byPath.get(path);
    return refusal?.ctimeNs === ctimeNs && refusal.retryAtMs > performance.now();
  }

  paths(): IterableIterator<string> {
    return this.#byPath.keys();
  }

  note(path: string, ctimeNs: bigint, failure: BucketError): void {
    const now = performance.now();
    const former = this.#byPath.get(path);
    const isSame = former?.ctimeNs === ctimeNs;
    const pauseMs = isSame
      ? Math.min(former.pauseMs * 2, DISK_LIMITS.bucketRefusalPauseMsMax)
      : DISK_LIMITS.bucketTickMs;
    const sinceMs = isSame ? former.sinceMs : now;
    this.#byPath.set(path, { ctimeNs, failure, sinceMs, pauseMs, retryAtMs: now + pauseMs });
  }

  /** The file was taken, or is no more. */
  forget(path: string): void {
    this.#byPath.delete(path);
  }

  /** Forgets all files but these. */
  keep(isThere: (path: string) => boolean): void {
    for (const path of this.#byPath.keys()) if (!isThere(path)) this.#byPath.delete(path);
  }

  /** Something was changed about the bucket: all are tried again at once. */
  retryAll(): void {
    for (const [path, refusal] of this.#byPath)
      this.#byPath.set(path, { ...refusal, retryAtMs: 0 });
  }

  /** Describes the files that were first refused since then; undefined when there are none. */
  tellSince(sinceMs: number): string | undefined {
    const news = [...this.#byPath].filter(([, refusal]) => refusal.sinceMs >= sinceMs);
    const [first] = news;
    if (first === undefined) return undefined;
    const [path, { failure }] = first;
    const others = news.length === 1 ? '' : ` and ${news.length - 1} more`;
    return `${path}${others}: ${failure.message}`;
  }

  get problems(): PathProblems {
    const problems = new PathProblems();
    for (const [path, { failure }] of this.#byPath) {
      problems.note(path, `not uploaded: ${failure.message}`);
    }
    return problems;
  }
}
