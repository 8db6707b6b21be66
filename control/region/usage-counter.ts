import { repeatInBackground } from '../../shared/background.ts';
import type { Accounts } from '../../shared/directory/accounts.ts';
import type { UsageRecords } from '../../shared/directory/usage.ts';
import { DIRECTORY_LIMITS } from '../../shared/directory/limits.ts';
import { LIMITS } from '../../shared/limits.ts';

interface Counts {
  requests: number;
  execs: number;
}

/** Counts what accounts ask of this node, and measures what is on their disks. */
export class UsageCounter {
  readonly #records: UsageRecords;
  readonly #accounts: Accounts;
  readonly #counts = new Map<string, Counts>();
  readonly #stops: readonly (() => void)[];

  constructor(records: UsageRecords, accounts: Accounts) {
    this.#records = records;
    this.#accounts = accounts;
    const { usageWrittenEveryMs } = LIMITS;
    const { storageMeasuredEveryMs } = DIRECTORY_LIMITS;
    this.#stops = [
      repeatInBackground('usage.write', usageWrittenEveryMs, () => this.#flush()),
      repeatInBackground('usage.measureStorage', storageMeasuredEveryMs, () => this.#measure()),
    ];
  }

  count(accountId: string, what: keyof Counts): void {
    const counts = this.#counts.get(accountId) ?? { requests: 0, execs: 0 };
    counts[what] += 1;
    this.#counts.set(accountId, counts);
  }

  async close(): Promise<void> {
    for (const stop of this.#stops) stop();
    await this.#flush();
  }

  /** Figures that cannot be written are kept for the next time. */
  async #flush(): Promise<void> {
    const all = [...this.#counts];
    this.#counts.clear();
    const written = await Promise.allSettled(
      all.map(([accountId, counts]) => this.#records.addCounts(accountId, counts)),
    );
    for (const [i, [accountId, counts]] of all.entries()) {
      if (written[i]?.status !== 'rejected') continue;
      const since = this.#counts.get(accountId) ?? { requests: 0, execs: 0 };
      this.#counts.set(accountId, {
        requests: since.requests + counts.requests,
        execs: since.execs + counts.execs,
      });
    }
  }

  async #measure(): Promise<void> {
    for (const { id } of await this.#accounts.list()) await this.#records.addStorage(id);
  }
}
