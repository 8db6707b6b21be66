import { existsSync } from 'node:fs';
import { runInBackground } from '../../shared/background.ts';
import { AppError, toError } from '../../shared/errors.ts';
import { DISK_LIMITS } from './limits.ts';
import type { Logger } from '../../shared/log.ts';
import { failpoint } from '../system/failpoint.ts';
import { ProgramError, ProgramTimeoutError } from '../system/spawn.ts';
import { type DiskLayout, prepareLayout } from './disk-layout.ts';
import {
  AttachedElsewhereError,
  isAttachedHere,
  isImageFree,
  mountAgain,
  mountImage,
  toAppError,
  unmountImage,
  unmountLeftover,
} from './mount.ts';
import { onBehalfOf } from './disk-threads.ts';
import type { LoopDevices } from './loop-devices.ts';
import { answerWithin, type StorageCalls } from './storage-calls.ts';

/**
 * How often umount is run when the kernel kills it for want of memory. Each kill frees some memory,
 * so the next run may succeed.
 */
const UNMOUNT_TRIES = 3;

export interface DiskStorageOptions {
  readonly accountId: string;
  readonly diskId: string;
  readonly image: string;
  /** Where it is mounted. */
  readonly target: string;
  /** Where it is mounted once more while a sandbox mounts it; a former agent may have done that. */
  readonly held: string;
  readonly loops: LoopDevices;
  readonly calls: StorageCalls;
  /** Runs on the mounted disk before anybody uses it, within the same deadline. */
  readonly onMounted: (layout: DiskLayout) => Promise<void>;
  readonly log: Logger;
}

/**
 * Attaches, detaches and changes one disk, each with a deadline. When the storage does not answer
 * in time, the disk is set aside: every request for it is refused at once until the hanging call
 * has ended. Other disks are not affected.
 */
export class DiskStorage {
  readonly #options: DiskStorageOptions;
  #overdue = 0;
  /** False when a mount failed and what it left could not be taken away. */
  #isFree = true;

  constructor(options: DiskStorageOptions) {
    this.#options = options;
  }

  get isSetAside(): boolean {
    return this.#overdue > 0;
  }

  /** After a mount that failed: nothing here uses the image, so another host may have it. */
  get isFree(): boolean {
    return this.#isFree && !this.isSetAside && !this.isHeld;
  }

  /** Whether the mount that outlives an agent is there. */
  get isHeld(): boolean {
    return existsSync(this.#options.held);
  }

  /** Mounts the mounted disk once more, where it outlives this agent. Idempotent. */
  async hold(): Promise<void> {
    const { target, held } = this.#options;
    if (!this.isHeld) await failpoint('mount held disk', () => mountAgain(target, held));
  }

  /**
   * Ends {@link hold}; the disk stays mounted at its usual place, if it is there. Idempotent.
   * @throws ProgramError, ProgramTimeoutError
   */
  async unhold(): Promise<void> {
    const { held } = this.#options;
    if (this.isHeld) await failpoint('unmount held disk', () => unmountLeftover(held));
  }

  /** @see isImageFree */
  isImageFree(): Promise<boolean> {
    return isImageFree(this.#options.image);
  }

  /**
   * For an image that is not free: finds out whether this host has it attached itself, as after an
   * unmount that failed, and detaches it then. A held disk stays attached.
   * @returns false when this host does not have it attached, as far as can be told
   * @throws AppError `unavailable` when something on this host still uses it
   */
  async detachLeftover(): Promise<boolean> {
    const { image, target, held, loops, diskId, log } = this.#options;
    const isHere = await isAttachedHere(image, loops.firstNumber, [target, held]);
    this.#isFree = !isHere;
    if (!isHere || this.isHeld) return isHere;
    await this.undoMount();
    log.warn({ diskId, isFree: this.#isFree }, 'disk:leftoverFound');
    if (this.#isFree) return true;
    throw new AppError(
      'unavailable',
      'something on this host still uses the disk after a failed unmount; try again',
    );
  }

  /**
   * Mounts the disk and makes it ready for use.
   * @throws StillAttachedError when somebody has its image attached; AppError `not_found` when it
   *   has none, `unavailable`
   */
  async mount(): Promise<void> {
    this.refuseIfSetAside();
    const { accountId, image, target, held, loops, onMounted, log, diskId } = this.#options;
    this.#isFree = true;
    try {
      if (this.isHeld) await mountAgain(held, target);
      else await mountImage(image, target, loops.firstNumber);
    } catch (error) {
      if (error instanceof ProgramTimeoutError) throw this.#giveUp(error);
      if (error instanceof AttachedElsewhereError) {
        log.error({ diskId, err: error.cause }, 'disk:attachedElsewhere');
      }
      // A mount helper that the kernel killed may have mounted the disk before.
      if (error instanceof ProgramError && error.wasKilled) await this.undoMount();
      throw error;
    }
    let isLate = false;
    try {
      const ready = onBehalfOf(accountId, undefined, async () =>
        onMounted(await prepareLayout(target)),
      );
      await answerWithin(ready, DISK_LIMITS.diskAttachMsMax, (ended) => {
        isLate = true;
        this.#setAside(this.#unmountAfter(ended));
      });
    } catch (error) {
      if (!isLate) await this.undoMount();
      throw toAppError(error);
    }
  }

  /**
   * Takes back a mount that the disk's owner cannot go on with; {@link isFree} says how it went.
   */
  async undoMount(): Promise<void> {
    this.#isFree = await this.unmount();
  }

  /** @returns false when the image is still in use: the lease must then be left to expire */
  async unmount(): Promise<boolean> {
    const { image, target, loops, log, diskId } = this.#options;
    loops.sweepSoon();
    for (let tries = 1; ; tries += 1) {
      try {
        const { isFree, wasInUse } = await unmountImage(image, target);
        if (wasInUse) log.error({ diskId, isFree }, 'disk:unmountedInUse');
        return isFree;
      } catch (error) {
        if (error instanceof ProgramTimeoutError) {
          this.#giveUp(error);
          return false;
        }
        log.error({ diskId, err: toError(error) }, 'disk:unmountFailed');
        const wasKilled = error instanceof ProgramError && error.wasKilled;
        if (!wasKilled || tries >= UNMOUNT_TRIES) return false;
      }
    }
  }

  /**
   * Runs work on the disk's files on the storage, apart from the mount.
   * @throws AppError `unavailable`, or what the work throws
   */
  async work<T>(work: () => Promise<T>): Promise<T> {
    this.refuseIfSetAside();
    return this.#options.calls.run(work, (ended) => this.#setAside(ended));
  }

  /** @throws AppError `unavailable` while the disk is set aside */
  refuseIfSetAside(): void {
    if (!this.isSetAside) return;
    throw new AppError('unavailable', 'the storage of the disk does not answer; try again later');
  }

  #giveUp(error: ProgramTimeoutError): AppError {
    this.#setAside(this.#unmountAfter(error.ended));
    const message = 'the storage of the disk does not answer; try again';
    return new AppError('unavailable', message, { cause: error });
  }

  #setAside(ended: Promise<unknown>): void {
    const { diskId, log } = this.#options;
    this.#overdue += 1;
    log.error({ diskId }, 'disk:setAside');
    runInBackground('disk.await', async () => {
      await ended.catch(toError);
      this.#overdue -= 1;
      if (!this.isSetAside) log.info({ diskId }, 'disk:storageRecovered');
    });
  }

  /** Unmounts once the abandoned attach has ended: it may have succeeded after its deadline. */
  async #unmountAfter(ended: Promise<unknown>): Promise<void> {
    await ended.catch(toError);
    await this.unmount();
  }
}
