import { withoutOverlap } from '../../../shared/background.ts';
import type { UsageRecords } from '../../../shared/directory/usage.ts';
import { LIMITS } from '../../../shared/limits.ts';
import type { Beat } from '../../system/beat.ts';

interface Running {
  readonly accountId: string;
  readonly vcpus: number;
  readonly memoryGib: number;
  /** On the clock of `performance.now()`: up to here its time has been added. */
  readonly since: number;
}

interface Sum {
  vcpuSeconds: number;
  memoryGibSeconds: number;
}

const MIB_PER_GIB = 1024;

/**
 * Measures for how long sandboxes of this host hold processors and memory, for the usage of their
 * accounts. What an agent that is killed had not written yet is lost: one interval at most.
 */
export class UsageMeter {
  readonly #records: UsageRecords;
  readonly #running = new Map<string, Running>();
  readonly #unsent = new Map<string, Sum>();
  readonly #stop: () => void;

  constructor(records: UsageRecords, beat: Beat) {
    this.#records = records;
    const flush = withoutOverlap('usage.write', () => this.flush());
    this.#stop = beat.every(LIMITS.usageWrittenEveryMs, flush);
  }

  /** Begins to measure a sandbox; ends the measurement that it had. */
  begin(
    sandboxId: string,
    accountId: string,
    { vcpus, memoryMib }: { readonly vcpus: number; readonly memoryMib: number },
  ): void {
    this.end(sandboxId);
    const memoryGib = memoryMib / MIB_PER_GIB;
    this.#running.set(sandboxId, { accountId, vcpus, memoryGib, since: performance.now() });
  }

  end(sandboxId: string): void {
    const running = this.#running.get(sandboxId);
    if (running === undefined) return;
    this.#running.delete(sandboxId);
    this.#add(running, performance.now());
  }

  /** Writes what was measured until now. What cannot be written is kept for the next time. */
  async flush(): Promise<void> {
    const now = performance.now();
    for (const [sandboxId, running] of this.#running) {
      this.#add(running, now);
      this.#running.set(sandboxId, { ...running, since: now });
    }
    const sums = [...this.#unsent];
    this.#unsent.clear();
    const written = await Promise.allSettled(
      sums.map(([accountId, sum]) => this.#records.addTime(accountId, sum)),
    );
    for (const [i, [accountId, sum]] of sums.entries()) {
      if (written[i]?.status === 'rejected') this.#keep(accountId, sum);
    }
  }

  async close(): Promise<void> {
    this.#stop();
    await this.flush();
  }

  #add({ accountId, vcpus, memoryGib, since }: Running, now: number): void {
    const seconds = (now - since) / 1000;
    this.#keep(accountId, { vcpuSeconds: vcpus * seconds, memoryGibSeconds: memoryGib * seconds });
  }

  #keep(accountId: string, sum: Sum): void {
    const before = this.#unsent.get(accountId);
    this.#unsent.set(accountId, {
      vcpuSeconds: (before?.vcpuSeconds ?? 0) + sum.vcpuSeconds,
      memoryGibSeconds: (before?.memoryGibSeconds ?? 0) + sum.memoryGibSeconds,
    });
  }
}
