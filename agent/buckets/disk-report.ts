import { LIMITS } from '../../shared/limits.ts';
import type { MountStatus } from '../../shared/schemas/disk-mount.ts';
import type { BucketError } from './bucket.ts';
import { PathProblems } from './problems.ts';

/** What the directory shows of a disk's bucket. */
export class DiskReport {
  readonly #record: (status: MountStatus) => Promise<void>;
  readonly #conflicts = new Map<string, string>();
  #reported = '';
  /** Keys that the disk cannot show. */
  ofKeys = new PathProblems();
  /** Files whose names cannot be keys. */
  ofNames = new PathProblems();

  constructor(record: (status: MountStatus) => Promise<void>) {
    this.#record = record;
  }

  /** @param key that both sides have changed */
  noteConflict(key: string, reason: string): void {
    if (this.#conflicts.size < LIMITS.bucketConflictsMax) this.#conflicts.set(key, reason);
  }

  /** Tells the directory when something is new. Never fails. */
  async tell(failure?: BucketError): Promise<void> {
    const problems = [
      ...[...this.#conflicts].map(([key, reason]) => ({ key, reason })),
      ...this.ofKeys.first,
      ...this.ofNames.first,
    ].slice(0, LIMITS.bucketProblemsShownMax);
    const status = {
      connectionStatus: failure === undefined ? ('connected' as const) : ('error' as const),
      ...(failure === undefined ? {} : { authError: failure.message }),
      problemCount: this.#conflicts.size + this.ofKeys.count + this.ofNames.count,
      problems,
    };
    const text = JSON.stringify(status);
    if (text === this.#reported) return;
    this.#reported = text;
    const checkedAt = new Date().toISOString();
    await this.#record({ ...status, checkedAt }).catch(() => (this.#reported = ''));
  }
}
