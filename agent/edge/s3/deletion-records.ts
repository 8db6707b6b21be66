import type { Activity } from '../../../shared/directory/activity.ts';
import { toError } from '../../../shared/errors.ts';
import { newEventId } from '../../../shared/ids.ts';
import { EDGE_LIMITS } from '../limits.ts';
import { LIMITS } from '../../../shared/limits.ts';
import type { Logger } from '../../../shared/log.ts';
import { MinuteSums } from '../../../shared/minute-sums.ts';
import { settledWithin } from '../../../shared/settled-within.ts';
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
  /** Interval over which DeleteObject calls are summed, in milliseconds. */
  readonly summedForMs?: number;
}

const whoOf = (principal: Principal): Record<string, string> =>
  principal.kind === 'account'
    ? { keyId: principal.keyId }
    : { userIdentifier: principal.identifier };

/**
 * Writes deletions of objects to the activity of the disk's account (docs/accounts.md, Audit): each
 * DeleteObjects before its answer, DeleteObject added up per disk and user, since programs send
 * thousands of them a minute.
 */
export class DeletionRecords {
  readonly #options: DeletionRecordsOptions;
  readonly #sums: MinuteSums<Sum>;

  constructor(options: DeletionRecordsOptions) {
    this.#options = options;
    const { summedForMs: forMs = EDGE_LIMITS.deletionsSummedMs } = options;
    this.#sums = new MinuteSums({
      ...{ task: 'deletions.record', forMs, write: (sums) => this.#writeSums(sums) },
    });
  }

  /** Records one DeleteObjects call. Never throws; waits 2 s at most for Redis. */
  async recordCall(deletion: Deletion): Promise<void> {
    const { address, requestId, deleted } = deletion;
    await this.#write(deletion, { operation: 'DeleteObjects', address, requestId, ...deleted });
  }

  /** Counts one DeleteObject. Never throws. */
  async count(deletion: Deletion): Promise<void> {
    const name = `${deletion.diskId} ${JSON.stringify(whoOf(deletion.principal))}`;
    const since = new Date().toISOString();
    this.#sums.of(name, () => ({ first: deletion, since, keys: 0 })).keys += deletion.deleted.keys;
    if (this.#sums.size >= EDGE_LIMITS.deletionSumsMax) await this.flush();
  }

  /** Writes what was counted so far. Never throws; waits 2 s at most for Redis. */
  async flush(): Promise<void> {
    await this.#sums.flush();
  }

  async #writeSums(sums: ReadonlyMap<string, Sum>): Promise<void> {
    const written = [...sums.values()].map(({ first, since, keys }) => {
      const { address } = first;
      return this.#write(first, { operation: 'DeleteObject', since, firstAddress: address, keys });
    });
    await Promise.all(written);
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
