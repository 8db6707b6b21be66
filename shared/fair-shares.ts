interface Shares {
  readonly count: number;
  /**
   * The most that a party may hold while it is alone. Less than `count`, so that the next party
   * finds some.
   */
  readonly perPartyMax: number;
}

/**
 * Whether a party that holds `held` may have one more while `free` are free. The limit is a
 * multiple of what is still free (dynamic thresholds: Choudhury and Hahne, IEEE/ACM Transactions on
 * Networking 6(2), 1998): `perPartyMax` for a party that is alone, and less the more parties there
 * are. So a party that comes later finds a permit, although permits are never taken back. A party's
 * first permit is never refused while one is free.
 */
export function isWithinShare({ count, perPartyMax }: Shares, held: number, free: number): boolean {
  if (free < 1) return false;
  if (held === 0 || perPartyMax >= count) return true;
  return (held + 1) * (count - perPartyMax) <= perPartyMax * (free - 1);
}

/** A permit that is held. Disposing it releases the permit. */
export type Permit = Disposable;

/** When this share of the permits is taken, transfers that stand still get less time. */
const CROWDED_SHARE = 0.5;

/**
 * A fixed number of permits that are granted at once or refused; nobody waits for one. Each counts
 * against every party that uses it, such as an account, a share link and an address. A party that
 * is alone may hold half of them.
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

  /** Takes a permit. @returns undefined when all are taken or one of the parties holds its share */
  take(parties: readonly string[]): Permit | undefined {
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
