import { AppError } from '../../shared/errors.ts';
import { LIMITS } from '../../shared/limits.ts';

interface Waiter {
  readonly accountId: string;
  readonly admit: () => void;
  readonly refuse: (reason: AppError) => void;
}

/** How fast the average of commands' durations follows the latest ones. */
const AVERAGE_WEIGHT = 0.1;
const FIRST_GUESS_MS = 100;

/** A place to run a command; given back when it has ended. */
export interface ExecSlot {
  release(): void;
}

/**
 * Who may run next. A fixed number of commands run at a time; when all places are taken, accounts
 * take turns, so that one account's backlog delays another account by one turn at most. A command
 * whose turn would come too late is refused at once, while its caller can still go elsewhere.
 */
export class ExecSlots {
  readonly #count: number;
  /** Waiting commands by account; the first account in the map has the next turn. */
  readonly #waiting = new Map<string, Waiter[]>();
  #used = 0;
  #averageMs = FIRST_GUESS_MS;
  #closed: AppError | undefined;
  readonly #idle = Promise.withResolvers<void>();

  constructor(count: number) {
    this.#count = count;
  }

  get used(): number {
    return this.#used;
  }

  get waiting(): number {
    let waiting = 0;
    for (const waiters of this.#waiting.values()) waiting += waiters.length;
    return waiting;
  }

  /**
   * Waits for a place.
   * @param signal ends the wait; its reason is thrown
   * @throws AppError `no_capacity` when the wait would be too long, `unavailable` when closing
   */
  async acquire(accountId: string, signal: AbortSignal): Promise<ExecSlot> {
    if (this.#closed !== undefined) throw this.#closed;
    signal.throwIfAborted();
    if (this.#used < this.#count) return this.#take();
    this.#checkRoom(accountId);
    const { promise, resolve, reject } = Promise.withResolvers<ExecSlot>();
    const waiter: Waiter = { accountId, admit: () => resolve(this.#take()), refuse: reject };
    const abort = (): void => {
      this.#forget(waiter);
      reject(signal.reason);
    };
    signal.addEventListener('abort', abort, { once: true });
    const waiters = this.#waiting.get(accountId);
    if (waiters === undefined) this.#waiting.set(accountId, [waiter]);
    else waiters.push(waiter);
    try {
      return await promise;
    } finally {
      signal.removeEventListener('abort', abort);
    }
  }

  /** Settles when the slots are closed and those who ran have ended. */
  get idle(): Promise<void> {
    return this.#idle.promise;
  }

  /** Refuses those who wait and those who come; those who run go on. */
  close(reason: AppError): void {
    this.#closed = reason;
    const waiters = [...this.#waiting.values()].flat();
    this.#waiting.clear();
    for (const waiter of waiters) waiter.refuse(reason);
    if (this.#used === 0) this.#idle.resolve();
  }

  #checkRoom(accountId: string): void {
    const own = this.#waiting.get(accountId)?.length ?? 0;
    const accounts = this.#waiting.size + (own === 0 ? 1 : 0);
    const waitMs = ((own + 1) * accounts * this.#averageMs) / this.#count;
    if (
      waitMs > LIMITS.execWaitMsMax ||
      own >= LIMITS.execsWaitingPerAccountMax ||
      this.waiting >= LIMITS.execsWaitingMax
    ) {
      throw new AppError('no_capacity', 'the host has more commands waiting than it can soon run');
    }
  }

  #take(): ExecSlot {
    const begunAt = performance.now();
    let released = false;
    this.#used += 1;
    return {
      release: () => {
        if (released) return;
        released = true;
        this.#used -= 1;
        const durationMs = performance.now() - begunAt;
        this.#averageMs += AVERAGE_WEIGHT * (durationMs - this.#averageMs);
        this.#admitNext();
        if (this.#closed !== undefined && this.#used === 0) this.#idle.resolve();
      },
    };
  }

  #admitNext(): void {
    const [turn] = this.#waiting;
    if (turn === undefined || this.#used >= this.#count) return;
    const [accountId, waiters] = turn;
    const next = waiters.shift();
    // To the end of the round, or out of it.
    this.#waiting.delete(accountId);
    if (waiters.length > 0) this.#waiting.set(accountId, waiters);
    next?.admit();
  }

  #forget(waiter: Waiter): void {
    const waiters = this.#waiting.get(waiter.accountId) ?? [];
    const left = waiters.filter((each) => each !== waiter);
    if (left.length === 0) this.#waiting.delete(waiter.accountId);
    else this.#waiting.set(waiter.accountId, left);
  }
}
