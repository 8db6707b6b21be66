import { toError } from '../../shared/errors.ts';
import { addressKey } from '../../shared/http/address-key.ts';
import { newEventId } from '../../shared/ids.ts';
import { HTTP_LIMITS } from './limits.ts';
import type { Logger } from '../../shared/log.ts';
import { MinuteSums } from '../../shared/minute-sums.ts';
import type { AuditFile } from './audit-file.ts';

/** A call that was refused, or failed, before anybody knew whose it was. */
export interface RefusedCall {
  readonly eventType: string;
  readonly status: number;
  readonly address: string;
}

interface Sum {
  readonly since: string;
  readonly eventTypes: Set<string>;
  readonly statuses: Set<number>;
  count: number;
}

/** Stands for all addresses beyond `HTTP_LIMITS.auditStrangersMax` of a minute. */
const OTHERS = 'others';

const newSum = (): Sum => ({
  since: new Date().toISOString(),
  ...{ eventTypes: new Set(), statuses: new Set(), count: 0 },
});

/**
 * Calls without a valid key in the audit file: one line a minute for each address (IPv6: each /64),
 * so that nobody without a key fills the storage.
 */
export class RefusedStrangers {
  readonly #file: Pick<AuditFile, 'append'>;
  readonly #log: Logger;
  readonly #sums: MinuteSums<Sum>;

  /** @param forMs how long the calls of an address are added up */
  constructor(
    file: Pick<AuditFile, 'append'>,
    log: Logger,
    forMs: number = HTTP_LIMITS.auditStrangersSummedMs,
  ) {
    this.#file = file;
    this.#log = log;
    this.#sums = new MinuteSums({
      ...{ task: 'audit.strangers', forMs, write: (sums) => this.#write(sums) },
    });
  }

  count({ eventType, status, address }: RefusedCall): void {
    const key = addressKey(address);
    const isListed = this.#sums.size < HTTP_LIMITS.auditStrangersMax || this.#sums.has(key);
    const sum = this.#sums.of(isListed ? key : OTHERS, newSum);
    sum.count += 1;
    sum.eventTypes.add(eventType);
    sum.statuses.add(status);
  }

  /** Writes what was counted so far. Never throws. */
  async flush(): Promise<void> {
    await this.#sums.flush();
  }

  async #write(sums: ReadonlyMap<string, Sum>): Promise<void> {
    const lines = [...sums].map(([address, { since, eventTypes, statuses, count }]) => ({
      ...{ eventId: newEventId(), eventTypes: [...eventTypes], level: 'warning' },
      createdAt: new Date().toISOString(),
      details: { outcome: 'refused', address, count, since, statuses: [...statuses] },
    }));
    const written = lines.map((line) => this.#file.append(JSON.stringify(line)));
    for (const result of await Promise.allSettled(written)) {
      if (result.status === 'fulfilled') continue;
      this.#log.error({ err: toError(result.reason) }, 'audit:entryLost');
    }
  }
}
