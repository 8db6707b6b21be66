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

  /**
   * Takes the uid of something that is left on the host.
   * @returns false when it is taken already
   */
  hold(uid: number): boolean {
    if (this.#taken.has(uid)) return false;
    this.#taken.add(uid);
    return true;
  }

  /** A number that is no uid, for a sandbox that needs none yet. It is freed like one. */
  takePlaceholder(): number {
    let placeholder = -1;
    while (this.#taken.has(placeholder)) placeholder -= 1;
    this.#taken.add(placeholder);
    return placeholder;
  }

  /** Frees a uid; call it only when nothing of its owner is left on the host. */
  release(uid: number): void {
    this.#taken.delete(uid);
  }
}
