import { closeSync } from 'node:fs';
import { toError } from '../../../shared/errors.ts';
import type { Logger } from '../../../shared/log.ts';
import { native } from '../../native/native.ts';

interface DiskChangesOptions {
  /** Where the disk is mounted. */
  readonly mount: string;
  /** Whether a sandbox may be writing to the disk. */
  readonly isHeld: () => boolean;
  readonly log: Logger;
}

/**
 * Whether files of a mounted disk may differ from what the last comparison with the bucket has
 * found. The kernel tells of every change once nothing is open any more that it was made through
 * (changes.c); as long as something may be open, there may be a change.
 */
export class DiskChanges {
  readonly #options: DiskChangesOptions;
  readonly #openUses = new Set<object>();
  /** The fanotify group that changes are noted in; without one there may always be a change. */
  readonly #group: number | undefined;
  #isExpected = true;
  #isComparing = false;
  #isClosed = false;

  constructor(options: DiskChangesOptions) {
    const { mount, log } = options;
    this.#options = options;
    try {
      this.#group = native.watchChanges(mount);
    } catch (error) {
      log.warn({ mount, err: toError(error) }, 'bucket:changesNotWatched');
    }
  }

  get isUsed(): boolean {
    return this.#openUses.size > 0 || this.#options.isHeld();
  }

  /** Whether there may be any. True as well while a comparison is at work. */
  get any(): boolean {
    this.#take();
    return this.#isExpected || this.#isComparing || this.isUsed;
  }

  /** A use begins that may have files open until {@link closed}. */
  opened(use: object): void {
    this.#openUses.add(use);
  }

  /** @returns whether files were open until now */
  closed(use: object): boolean {
    return this.#openUses.delete(use);
  }

  /** The next comparison must take place, whatever the kernel tells. */
  expect(): void {
    this.#isExpected = true;
  }

  /**
   * Makes a comparison that finds every change so far. It takes place now and then without a reason
   * as well: what it finds then is a fault of what is said above, and logged.
   * @param comparison returns whether it has found any
   * @throws what the comparison throws; the changes are still expected then
   */
  async compare(comparison: () => Promise<boolean>): Promise<void> {
    const wasAny = this.any;
    this.#isExpected = false;
    this.#isComparing = true;
    try {
      const hasFound = await comparison();
      this.#take();
      const isMissed = hasFound && !wasAny && !this.#isExpected && !this.isUsed;
      if (isMissed) this.#options.log.error({ mount: this.#options.mount }, 'bucket:changeMissed');
    } catch (error) {
      this.#isExpected = true;
      throw error;
    } finally {
      this.#isComparing = false;
    }
  }

  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    if (this.#group !== undefined) closeSync(this.#group);
  }

  #take(): void {
    const isUnknown = this.#isClosed || this.#group === undefined;
    if (isUnknown || native.takeChanges(this.#group)) this.#isExpected = true;
  }
}
