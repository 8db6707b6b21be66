import { runInBackground } from '../../shared/background.ts';
import { toError } from '../../shared/errors.ts';
import { addressKey } from '../../shared/http/address-key.ts';
import { newEventId } from '../../shared/ids.ts';
import { LIMITS } from '../../shared/limits.ts';
import type { Logger } from '../../shared/log.ts';
import type { AuditFile } from './audit-file.ts';

/** A call that was refused before anybody knew whose it was. */
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

/** Stands for all addresses beyond `LIMITS.auditStrangersMax` of a minute. */
const OTHERS = 'others';

/**
 * Calls without a valid key in the audit file: one line a minute for each address (IPv6: each /64),
 * so that nobody without a key fills the storage. A crash loses the minute.
 */
export class RefusedStrangers {
  readonly #file: Pick<AuditFile, 'append'>;
  readonly #log: Logger;
  readonly #summedForMs: number;
  readonly #sums = new Map<string, Sum>();
  #timer: NodeJS.Timeout | undefined;

  /** @param summedForMs how long the calls of an address are added up */
  constructor(
    file: Pick<AuditFile, 'append'>,
    log: Logger,
    summedForMs: number = LIMITS.auditStrangersSummedMs,
  ) {
    this.#file = file;
    this.#log = log;
    this.#summedForMs = summedForMs;
  }

  count({ eventType, status, address }: RefusedCall): void {
    const key = addressKey(address);
    const name = this.#sums.size < LIMITS.auditStrangersMax || this.#sums.has(key) ? key : OTHERS;
    const since = new Date().toISOString();
    const sum = this.#sums.get(name) ?? {
      ...{ since, eventTypes: new Set(), statuses: new Set(), count: 0 },
    };
    this.#sums.set(name, sum);
    sum.count += 1;
    sum.eventTypes.add(eventType);
    sum.statuses.add(status);
    if (this.#timer !== undefined) return;
    const flush = (): void => runInBackground('audit.strangers', () => this.flush());
    this.#timer = setTimeout(flush, this.#summedForMs).unref();
  }

  /** Writes what was counted so far. Never throws. */
  async flush(): Promise<void> {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    const sums = [...this.#sums];
    this.#sums.clear();
    const lines = sums.map(([address, { since, eventTypes, statuses, count }]) => ({
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
