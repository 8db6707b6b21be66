interface Shares {
  readonly count: number;
  /** For a party that is alone; less than `count` leaves some free for those who come next. */
  readonly perPartyMax: number;
}

/**
 * Whether a party that holds `held` may have one more while `free` are free. What it may hold is a
 * multiple of what is then still free (dynamic thresholds: Choudhury and Hahne, IEEE/ACM
 * Transactions on Networking 6(2), 1998): alone `perPartyMax`, and less the more parties there are,
 * so that one that comes later finds a place although none can be taken back. The first one is
 * anybody's.
 */
export function isWithinShare({ count, perPartyMax }: Shares, held: number, free: number): boolean {
  if (free < 1) return false;
  if (held === 0 || perPartyMax >= count) return true;
  return (held + 1) * (count - perPartyMax) <= perPartyMax * (free - 1);
}

/** A place that is held; disposing gives it back. */
export type Place = Disposable;

/** From this part of the places on, those who stand still are in the way of others. */
const CROWDED_SHARE = 0.5;

/**
 * A fixed number of places that nobody waits for: one is had at once or not at all. Each is counted
 * against every party that it is used by, such as an account, a share link and an address, and each
 * party alone may have half of them.
 */
export class FairShares {
  readonly #shares: Shares;
  readonly #held = new Map<string, number>();
  #used = 0;

  constructor(count: number) {
    this.#shares = { count, perPartyMax: Math.max(1, Math.floor(count / 2)) };
  }

  get isCrowded(): boolean {
    return this.#used >= this.#shares.count * CROWDED_SHARE;
  }

  get isFull(): boolean {
    return this.#used >= this.#shares.count;
  }

  /** A place, or undefined when all are taken or one of the parties has its share. */
  take(parties: readonly string[]): Place | undefined {
    if (this.isFull || !parties.every((party) => this.#mayHold(party))) return undefined;
    let isHeld = true;
    this.#used += 1;
    for (const party of parties) this.#held.set(party, (this.#held.get(party) ?? 0) + 1);
    return {
      [Symbol.dispose]: () => {
        if (!isHeld) return;
        isHeld = false;
        this.#used -= 1;
        for (const party of parties) this.#release(party);
      },
    };
  }

  #mayHold(party: string): boolean {
    const free = this.#shares.count - this.#used;
    return isWithinShare(this.#shares, this.#held.get(party) ?? 0, free);
  }

  #release(party: string): void {
    const held = (this.#held.get(party) ?? 0) - 1;
    if (held > 0) this.#held.set(party, held);
    else this.#held.delete(party);
  }
}
