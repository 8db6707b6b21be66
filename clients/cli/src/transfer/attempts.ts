import type { BerthError } from '@berth/sdk';
import { Failure } from '../failure.ts';
import { counted } from '../text.ts';

/** A file that was not copied, compared or deleted, and why. */
export interface FailedFile {
  readonly path: string;
  readonly error: string;
}

/** Does the work for each path; a failure of one does not stop the others. */
export class Attempts {
  readonly failed: FailedFile[] = [];

  readonly note = (path: string, error: Error): void => {
    this.failed.push({ path, error: error.message });
  };

  /** @throws Error when every other file would fail the same way */
  async of(path: string, work: () => Promise<void>): Promise<void> {
    try {
      await work();
    } catch (error) {
      const { code } = error as BerthError;
      if (code === 'connection_failed' || code === 'unauthorized') throw error;
      this.note(path, error as Error);
    }
  }
}

/** @throws Failure when there are any: the exit code says so, too */
export function requireNone(failed: readonly FailedFile[]): void {
  const [first] = failed;
  if (first === undefined) return;
  throw new Failure(
    `${counted(failed.length, 'file')} failed, such as ${first.path}: ${first.error}`,
    'run it again for the rest',
  );
}
