import { DISK_LIMITS } from '../limits.ts';
import type { BucketStatus } from '../../../shared/schemas/disk-bucket.ts';
import type { BucketError } from './bucket.ts';
import { PathProblems } from './problems.ts';

/** Reports the state of a disk's bucket to the directory. */
export class DiskReport {
  readonly #record: (status: BucketStatus) => Promise<void>;
  readonly #conflicts = new Map<string, string>();
  /** Keys that the disk cannot show. */
  ofKeys = new PathProblems();
  /** Files whose names cannot be keys. */
  ofNames = new PathProblems();
  /** Files that the bucket does not take. */
  ofRefusals = new PathProblems();
  /** The state that the directory shows, without the time. */
  #told: string | undefined;

  constructor(record: (status: BucketStatus) => Promise<void>) {
    this.#record = record;
  }

  /** @param key that both sides have changed */
  noteConflict(key: string, reason: string): void {
    if (this.#conflicts.size < DISK_LIMITS.bucketConflictsMax) this.#conflicts.set(key, reason);
  }

  /**
   * Whether the directory shows anything else than a bucket that can be used, and these problems.
   */
  get hasNews(): boolean {
    return this.#told !== JSON.stringify(this.#status(undefined));
  }

  get #problemCount(): number {
    const { ofKeys, ofNames, ofRefusals } = this;
    return this.#conflicts.size + ofKeys.count + ofNames.count + ofRefusals.count;
  }

  /** Tells the directory. Never fails. @param failure why the bucket cannot be used */
  async tell(failure?: BucketError): Promise<void> {
    const status = this.#status(failure);
    this.#told = undefined;
    try {
      await this.#record({ ...status, checkedAt: new Date().toISOString() });
      this.#told = JSON.stringify(status);
    } catch {
      // Told again by the next comparison.
    }
  }

  #status(failure: BucketError | undefined): Omit<BucketStatus, 'checkedAt'> {
    const problems = [
      ...[...this.#conflicts].map(([key, reason]) => ({ key, reason })),
      ...this.ofRefusals.first,
      ...this.ofKeys.first,
      ...this.ofNames.first,
    ].slice(0, DISK_LIMITS.bucketProblemsShownMax);
    return {
      connectionStatus: failure === undefined ? 'connected' : 'error',
      ...(failure === undefined ? {} : { authError: failure.message }),
      problemCount: this.#problemCount,
      problems,
    };
  }
}
