import { AppError } from '../../../shared/errors.ts';
import { isWithinShare } from '../../../shared/fair-shares.ts';

/** How turns, or places in the queue for them, are shared between accounts. */
interface AccountShares {
  readonly count: number;
  /**
   * The most that an account may hold while it is alone; less than `count` leaves some for the next
   * one.
   */
  readonly perAccountMax: number;
}

const mayHold = (shares: AccountShares, held: number, free: number): boolean =>
  isWithinShare({ count: shares.count, perPartyMax: shares.perAccountMax }, held, free);

export interface FairTurnsOptions extends AccountShares {
  /** How many requests may wait. Undefined: any number. */
  readonly waiting?: AccountShares;
  /**
   * A request that would probably wait longer is refused at once. Undefined: any wait is accepted.
   */
  readonly waitMsMax?: number;
  /** The message of the error that refuses a request to wait. */
  readonly refusal: string;
}

/** The right to run now. Its holder releases it when done; releasing twice counts once. */
export interface Turn {
  release(): void;
}

interface Waiter {
  readonly admit: () => void;
  readonly refuse: (reason: AppError) => void;
}

interface Account {
  held: number;
  waiting: Waiter[];
  /** How long this account keeps a turn, as a moving average. */
  averageMs: number;
}

/** Weight of the latest duration in the moving average. */
const AVERAGE_WEIGHT = 0.1;
const FIRST_GUESS_MS = 100;

/**
 * A fixed number of turns that accounts share. A turn cannot be revoked, so no account may hold so
 * many that the next account finds none. A released turn goes to the waiting account that holds the
 * fewest; among equals, to the one whose last turn began the longest ago.
 */
export class FairTurns {
  readonly #options: FairTurnsOptions;
  /** Accounts that hold turns or wait for one, ordered by the start of their last turn. */
  readonly #accounts = new Map<string, Account>();
  #used = 0;
  #waiting = 0;
  #closed: AppError | undefined;
  readonly #idle = Promise.withResolvers<void>();

  constructor(options: FairTurnsOptions) {
    this.#options = options;
  }

  get used(): number {
    return this.#used;
  }

  get waiting(): number {
    return this.#waiting;
  }

  /**
   * Waits for a turn.
   * @param signal ends the wait; its reason is thrown. Undefined: nothing ends it
   * @param timeoutMs how long to wait; undefined: any time
   * @throws AppError `no_capacity` when too many wait, or the wait is or would be too long; the
   *   reason that {@link close} was given
   */
  async acquire(
    accountId: string,
    signal: AbortSignal | undefined,
    timeoutMs?: number,
  ): Promise<Turn> {
    signal?.throwIfAborted();
    const turn = this.tryAcquire(accountId);
    if (turn !== undefined) return turn;
    const account = this.#find(accountId);
    this.#checkMayWait(account);
    this.#accounts.set(accountId, account);
    return this.#wait(accountId, account, { signal, timeoutMs });
  }

  /** @returns undefined when the account must wait @throws AppError the reason of {@link close} */
  tryAcquire(accountId: string): Turn | undefined {
    if (this.#closed !== undefined) throw this.#closed;
    const account = this.#find(accountId);
    const isFree = account.waiting.length === 0 && this.#mayTake(account);
    return isFree ? this.#take(accountId, account) : undefined;
  }

  #find(accountId: string): Account {
    return this.#accounts.get(accountId) ?? { held: 0, waiting: [], averageMs: FIRST_GUESS_MS };
  }

  /** Resolves once {@link close} was called and every turn is released. */
  get idle(): Promise<void> {
    return this.#idle.promise;
  }

  /** Refuses waiting and future requests with `reason`; turns that are held stay valid. */
  close(reason: AppError): void {
    this.#closed = reason;
    for (const account of this.#accounts.values()) {
      for (const waiter of account.waiting.splice(0)) waiter.refuse(reason);
    }
    this.#waiting = 0;
    if (this.#used === 0) this.#idle.resolve();
  }

  #mayTake({ held }: Account): boolean {
    return mayHold(this.#options, held, this.#options.count - this.#used);
  }

  #checkMayWait({ held, waiting, averageMs }: Account): void {
    const { count, perAccountMax, waiting: queue, waitMsMax, refusal } = this.#options;
    const isNew = held === 0 && waiting.length === 0;
    const accounts = this.#accounts.size + (isNew ? 1 : 0);
    const share = Math.max(1, Math.min(perAccountMax, Math.floor(count / accounts)));
    const waitMs = ((waiting.length + 1) * averageMs) / share;
    const mayQueue =
      queue === undefined || mayHold(queue, waiting.length, queue.count - this.#waiting);
    if (!mayQueue || (waitMsMax !== undefined && waitMs > waitMsMax)) {
      throw new AppError('no_capacity', refusal);
    }
  }

  async #wait(
    accountId: string,
    account: Account,
    { signal, timeoutMs }: { signal: AbortSignal | undefined; timeoutMs: number | undefined },
  ): Promise<Turn> {
    const { promise, resolve, reject } = Promise.withResolvers<Turn>();
    const waiter: Waiter = {
      admit: () => resolve(this.#take(accountId, account)),
      refuse: reject,
    };
    const giveUp = (reason: unknown): void => {
      const index = account.waiting.indexOf(waiter);
      if (index === -1) return; // The waiter was admitted or refused just now.
      account.waiting.splice(index, 1);
      this.#waiting -= 1;
      this.#forgetIfIdle(accountId, account);
      reject(reason);
    };
    const onAbort = (): void => giveUp(signal?.reason);
    signal?.addEventListener('abort', onAbort, { once: true });
    const { refusal } = this.#options;
    const timer =
      timeoutMs === undefined
        ? undefined
        : setTimeout(() => giveUp(new AppError('no_capacity', refusal)), timeoutMs);
    account.waiting.push(waiter);
    this.#waiting += 1;
    try {
      return await promise;
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener('abort', onAbort);
    }
  }

  #take(accountId: string, account: Account): Turn {
    const begunAt = performance.now();
    let released = false;
    this.#used += 1;
    account.held += 1;
    // Moves the account to the end of the order.
    this.#accounts.delete(accountId);
    this.#accounts.set(accountId, account);
    return {
      release: () => {
        if (released) return;
        released = true;
        this.#used -= 1;
        account.held -= 1;
        const durationMs = performance.now() - begunAt;
        account.averageMs += AVERAGE_WEIGHT * (durationMs - account.averageMs);
        this.#forgetIfIdle(accountId, account);
        while (this.#admitNext());
        if (this.#closed !== undefined && this.#used === 0) this.#idle.resolve();
      },
    };
  }

  /** Admits one request of the waiting account that holds the fewest turns, if it may take one. */
  #admitNext(): boolean {
    let next: Account | undefined;
    for (const account of this.#accounts.values()) {
      if (account.waiting.length > 0 && account.held < (next?.held ?? Infinity)) next = account;
    }
    if (next === undefined || !this.#mayTake(next)) return false;
    const waiter = next.waiting.shift();
    this.#waiting -= 1;
    waiter?.admit();
    return true;
  }

  #forgetIfIdle(accountId: string, account: Account): void {
    if (account.held > 0 || account.waiting.length > 0) return;
    if (this.#accounts.get(accountId) === account) this.#accounts.delete(accountId);
  }
}
