/** A reproducible sequence of numbers from a seed (mulberry32 by Tommy Ettinger). */
export class Random {
  #state: number;

  constructor(seed: number) {
    this.#state = Math.trunc(seed) % 2 ** 32;
  }

  /** An integer of at least 0 and below the limit. */
  below(limit: number): number {
    this.#state = (this.#state + 0x6d2b79f5) % 2 ** 32;
    let mixed = Math.imul(this.#state ^ (this.#state >>> 15), this.#state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return Math.floor((((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32) * limit);
  }

  /** @throws Error when the list is empty */
  of<T>(choices: readonly T[]): T {
    const chosen = choices[this.below(choices.length)];
    if (chosen === undefined) throw new Error('nothing to choose from');
    return chosen;
  }
}
