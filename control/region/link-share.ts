/**
 * The share of a region's hosts that link to this node by themselves (decision 0102): all of them,
 * up to the number that a node wants.
 */
export class LinkShare {
  readonly #wanted: number;
  #value = 1;

  constructor(wanted: number) {
    this.#wanted = wanted;
  }

  /** From 0 to 1. */
  get value(): number {
    return this.#value;
  }

  /** Whether there are hosts that link to this node only when it asks. */
  get isPartial(): boolean {
    return this.#value < 1;
  }

  /** @param hosts how many there are in the region */
  follow(hosts: number): void {
    this.#value = hosts <= this.#wanted ? 1 : this.#wanted / hosts;
  }
}
