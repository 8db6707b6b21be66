import { AppError } from '../../shared/errors.ts';
import { isWithinShare } from '../../shared/fair-shares.ts';

/** How many an account may hold, of places or of room to wait. */
interface AccountShares {
  readonly count: number;
  /** For an account that is alone; less than `count` leaves some free for those who come next. */
  readonly perAccountMax: number;
}

const mayHold = (shares: AccountShares, held: number, free: number): boolean =>
  isWithinShare({ count: shares.count, perPartyMax: shares.perAccountMax }, held, free);

export interface FairSlotsOptions extends AccountShares {
  /** Undefined: any number may wait. */
  readonly waiting?: AccountShares;
  /** Who would probably wait longer is refused at once. Undefined: any time. */
  readonly waitMsMax?: number;
  /** What those who may not wait are told. */
  readonly refusal: string;
}

/** A place; given back when its holder is done. */
export interface Slot {
  release(): void;
}

interface Waiter {
  readonly admit: () => void;
  readonly refuse: (reason: AppError) => void;
}

interface Account {
  held: number;
  waiting: Waiter[];
  /** How long this account keeps a place, on average. */
  averageMs: number;
}

/** How fast the average of durations follows the latest ones. */
const AVERAGE_WEIGHT = 0.1;
const FIRST_GUESS_MS = 100;

/**
 * A fixed number of places that accounts share. A place cannot be taken back, so no account gets so
 * many that none is left for the next one; and whenever one becomes free, it goes to the waiting
 * account that holds the fewest, in turns where that is equal.
 */
export class FairSlots {
  readonly #options: FairSlotsOptions;
  /** Those who hold or wait; the first one had its turn the longest ago. */
  readonly #accounts = new Map<string, Account>();
  #used = 0;
  #waiting = 0;
  #closed: AppError | undefined;
  readonly #idle = Promise.withResolvers<void>();

  constructor(options: FairSlotsOptions) {
    this.#options = options;
  }

  get used(): number {
    return this.#used;
  }

  get waiting(): number {
    return this.#waiting;
  }

  /**
   * Waits for a place.
   * @param signal ends the wait; its reason is thrown
   * @throws AppError `no_capacity` when the wait would be too long, `unavailable` when closing
   */
  async acquire(accountId: string, signal: AbortSignal): Promise<Slot> {
    signal.throwIfAborted();
    const slot = this.tryAcquire(accountId);
    if (slot !== undefined) return slot;
    const account = this.#find(accountId);
    this.#checkMayWait(account);
    this.#accounts.set(accountId, account);
    return this.#wait(accountId, account, signal);
  }

  /** @returns undefined when the account has to wait for one @throws AppError `unavailable` */
  tryAcquire(accountId: string): Slot | undefined {
    if (this.#closed !== undefined) throw this.#closed;
    const account = this.#find(accountId);
    const isFree = account.waiting.length === 0 && this.#mayTake(account);
    return isFree ? this.#take(accountId, account) : undefined;
  }

  #find(accountId: string): Account {
    return this.#accounts.get(accountId) ?? { held: 0, waiting: [], averageMs: FIRST_GUESS_MS };
  }

  /** Settles when the slots are closed and nobody holds one. */
  get idle(): Promise<void> {
    return this.#idle.promise;
  }

  /** Refuses those who wait and those who come; those who hold a place keep it. */
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
    const { count, perAccountMax, waiting: room, waitMsMax, refusal } = this.#options;
    const isNew = held === 0 && waiting.length === 0;
    const accounts = this.#accounts.size + (isNew ? 1 : 0);
    const share = Math.max(1, Math.min(perAccountMax, Math.floor(count / accounts)));
    const waitMs = ((waiting.length + 1) * averageMs) / share;
    const hasRoom = room === undefined || mayHold(room, waiting.length, room.count - this.#waiting);
    if (!hasRoom || (waitMsMax !== undefined && waitMs > waitMsMax)) {
      throw new AppError('no_capacity', refusal);
    }
  }

  async #wait(accountId: string, account: Account, signal: AbortSignal): Promise<Slot> {
    const { promise, resolve, reject } = Promise.withResolvers<Slot>();
    const waiter: Waiter = {
      admit: () => resolve(this.#take(accountId, account)),
      refuse: reject,
    };
    const abort = (): void => {
      const index = account.waiting.indexOf(waiter);
      if (index === -1) return; // Admitted or refused at this very moment.
      account.waiting.splice(index, 1);
      this.#waiting -= 1;
      this.#forgetIfIdle(accountId, account);
      reject(signal.reason);
    };
    signal.addEventListener('abort', abort, { once: true });
    account.waiting.push(waiter);
    this.#waiting += 1;
    try {
      return await promise;
    } finally {
      signal.removeEventListener('abort', abort);
    }
  }

  #take(accountId: string, account: Account): Slot {
    const begunAt = performance.now();
    let released = false;
    this.#used += 1;
    account.held += 1;
    // To the end of the round.
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

  /** Whoever holds the fewest may take one if anybody may. */
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
