/** Users for machines: each is one sandbox's, or one prewarmed machine's, as long as that exists. */
export class UidPool {
  readonly #base: number;
  readonly #taken: Set<number>;

  /** @param base the first of them */
  constructor(base: number, taken: Iterable<number>) {
    this.#base = base;
    this.#taken = new Set(taken);
  }

  take(): number {
    let uid = this.#base;
    while (this.#taken.has(uid)) uid += 1;
    this.#taken.add(uid);
    return uid;
  }

  /** Nothing of its owner is left. */
  release(uid: number): void {
    this.#taken.delete(uid);
  }
}
