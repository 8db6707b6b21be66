import type { Activity } from '../../shared/directory/activity.ts';
import { runInBackground } from '../../shared/background.ts';
import { toError } from '../../shared/errors.ts';
import { newEventId } from '../../shared/ids.ts';
import { LIMITS } from '../../shared/limits.ts';
import type { Logger } from '../../shared/log.ts';
import { settledWithin } from '../../shared/settled-within.ts';
import type { Principal } from './auth/principal.ts';
import type { DeletedKeys } from './http/operation.ts';

/** A request that deleted objects. */
export interface Deletion {
  readonly accountId: string;
  readonly diskId: string;
  readonly principal: Principal;
  readonly address: string;
  readonly requestId: unknown;
  readonly deleted: Readonly<DeletedKeys>;
}

interface Sum {
  readonly first: Deletion;
  readonly since: string;
  keys: number;
}

export interface DeletionRecordsOptions {
  readonly activity: Activity;
  readonly log: Logger;
  /** For how long deletions of single objects are added up. */
  readonly summedForMs?: number;
}

const whoOf = (principal: Principal): Record<string, string> =>
  principal.kind === 'account'
    ? { keyId: principal.keyId }
    : { userIdentifier: principal.identifier };

/**
 * Writes deletions of objects to the activity of the disk's account (docs/accounts.md, Audit): each
 * DeleteObjects before its answer, DeleteObject added up per disk and user, since programs send
 * thousands of them a minute. A crash of the agent loses at most one minute of those sums.
 */
export class DeletionRecords {
  readonly #options: DeletionRecordsOptions;
  readonly #sums = new Map<string, Sum>();
  #timer: NodeJS.Timeout | undefined;

  constructor(options: DeletionRecordsOptions) {
    this.#options = options;
  }

  /** Records one DeleteObjects call. Never throws; waits 2 s at most for Redis. */
  async recordCall(deletion: Deletion): Promise<void> {
    const { address, requestId, deleted } = deletion;
    await this.#write(deletion, { operation: 'DeleteObjects', address, requestId, ...deleted });
  }

  /** Counts one DeleteObject. */
  count(deletion: Deletion): void {
    const name = `${deletion.diskId} ${JSON.stringify(whoOf(deletion.principal))}`;
    const sum = this.#sums.get(name);
    if (sum !== undefined) {
      sum.keys += deletion.deleted.keys;
      return;
    }
    const { keys } = deletion.deleted;
    this.#sums.set(name, { first: deletion, since: new Date().toISOString(), keys });
    if (this.#sums.size >= LIMITS.deletionSumsMax) this.#flushSoon(0);
    const { summedForMs = LIMITS.deletionsSummedMs } = this.#options;
    if (this.#timer === undefined) this.#flushSoon(summedForMs);
  }

  #flushSoon(ms: number): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => runInBackground('deletions.record', () => this.flush()), ms);
    this.#timer.unref();
  }

  /** Writes what was counted so far. Never throws. */
  async flush(): Promise<void> {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    const sums = [...this.#sums.values()];
    this.#sums.clear();
    for (const { first, since, keys } of sums) {
      const { address } = first;
      await this.#write(first, { operation: 'DeleteObject', since, firstAddress: address, keys });
    }
  }

  async #write(
    { accountId, diskId, principal }: Deletion,
    details: Readonly<Record<string, unknown>>,
  ): Promise<void> {
    const { activity, log } = this.#options;
    const eventId = newEventId();
    const written = activity.record({
      ...{ eventId, accountId, diskId, eventType: 'disk.objects_deleted', level: 'info' },
      createdAt: new Date().toISOString(),
      details: { outcome: 'done', ...details, ...whoOf(principal) },
    });
    written.catch((error: unknown) => {
      log.error({ err: toError(error), eventId }, 'audit:entryLost');
    });
    if (await settledWithin(written, LIMITS.auditMsMax)) return;
    log.error({ eventId }, 'audit:entryLate');
  }
}
