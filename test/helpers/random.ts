const FNV_OFFSET = 0x81_1c_9d_c5;
const FNV_PRIME = 0x01_00_01_93;

/** FNV-1a, 32 bits. */
function hash(text: string): number {
  let value = FNV_OFFSET;
  for (const byte of Buffer.from(text)) value = Math.imul(value ^ byte, FNV_PRIME) >>> 0;
  return value;
}

/** Reproducible draws: the same seed and stream name give the same sequence (mulberry32). */
export class Random {
  readonly #stream: string;
  #state: number;

  /** @param stream separates the sequences of different users of one seed */
  constructor(seed: number | string, stream: string) {
    this.#stream = stream;
    this.#state = hash(`${seed}/${stream}`);
  }

  /** The same stream of another seed, from its beginning. */
  reseed(seed: number | string): void {
    this.#state = hash(`${seed}/${this.#stream}`);
  }

  /** At least 0 and below 1. */
  fraction(): number {
    this.#state = (this.#state + 0x6d_2b_79_f5) >>> 0;
    let value = this.#state;
    value = Math.imul(value ^ (value >>> 15), value | 1);
    value ^= value + Math.imul(value ^ (value >>> 7), value | 61);
    return ((value ^ (value >>> 14)) >>> 0) / 2 ** 32;
  }

  /** Both ends are included. */
  integer(min: number, max: number): number {
    return min + Math.floor(this.fraction() * (max - min + 1));
  }

  /** An integer of at least 0 and below the limit. */
  below(limit: number): number {
    return this.integer(0, limit - 1);
  }

  pick<T>(items: readonly T[]): T {
    const item = items[this.integer(0, items.length - 1)];
    if (item === undefined) throw new Error('nothing to pick from');
    return item;
  }

  /** A key of the table, with a probability proportional to its weight. */
  weighted<K extends string>(weights: Readonly<Record<K, number>>): K {
    const entries = Object.entries(weights) as [K, number][];
    let left = this.fraction() * entries.reduce((sum, [, weight]) => sum + weight, 0);
    for (const [key, weight] of entries) {
      left -= weight;
      if (left < 0) return key;
    }
    throw new Error('no key has a weight');
  }
}
