import type { Random } from '../helpers/random.ts';

/** Something that is about to happen, and does so when it is its turn. */
export interface Pending {
  readonly point: string;
  /** Id of the subject, if it is known. */
  readonly id: string;
  /** Whose agent it belongs to; 0 for what happens on the host by itself. */
  readonly agent: number;
  /** `driver`, `journal` …: what can go wrong there. */
  readonly kind: PendingKind;
  /** The event does not happen before this time, on the clock of `performance.now()`. */
  notBefore: number;
  happen(): void;
  fail(error: Error): void;
}

/** Events of this process between two steps may have come in any order. */
const byName = (a: Pending, b: Pending): number =>
  a.point < b.point ? -1 : a.point > b.point ? 1 : a.id < b.id ? -1 : a.id > b.id ? 1 : 0;

export type PendingKind = 'driver' | 'failpoint' | 'directory' | 'slots' | 'images' | 'host';

/**
 * All that is under way outside of the agent's own memory. Whatever waits here waits for its turn,
 * which the seed decides; so one seed gives one order of events.
 */
export class Schedule {
  #pending: Pending[] = [];
  /** How often each point was reached. */
  readonly reached = new Map<string, number>();

  get size(): number {
    return this.#pending.length;
  }

  /** Resolves when it is its turn. */
  wait(agent: number, kind: PendingKind, point: string, id = ''): Promise<void> {
    return new Promise((resolve, reject) => {
      this.add({ point, id, agent, kind, notBefore: 0, happen: resolve, fail: reject });
    });
  }

  add(pending: Pending): void {
    this.reached.set(pending.point, (this.reached.get(pending.point) ?? 0) + 1);
    this.#pending.push(pending);
  }

  /** Takes an event whose time has come. */
  take(random: Random): Pending | undefined {
    const now = performance.now();
    const ready = this.#pending.filter(({ notBefore }) => notBefore <= now).toSorted(byName);
    if (ready.length === 0) return undefined;
    const taken = random.pick(ready);
    this.#pending.splice(this.#pending.indexOf(taken), 1);
    return taken;
  }

  /** Nothing is stuck any more. */
  unstick(): void {
    for (const pending of this.#pending) pending.notBefore = 0;
  }

  /** Drops the events of a dead agent, which never end. */
  forget(agent: number): void {
    this.#pending = this.#pending.filter((pending) => pending.agent !== agent);
  }
}
