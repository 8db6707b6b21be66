/** Uids for machines. A sandbox or prewarmed VM holds one for as long as it exists. */
export class UidPool {
  readonly #base: number;
  readonly #taken: Set<number>;

  /** @param base the first uid @param taken uids that are in use already */
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

  /** Frees a uid; call it only when nothing of its owner is left on the host. */
  release(uid: number): void {
    this.#taken.delete(uid);
  }
}
