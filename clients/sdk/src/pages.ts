/** A page of a list. */
export interface Page<T> {
  readonly items: readonly T[];
  /** Asks for the next page; undefined on the last one. */
  readonly nextCursor: string | undefined;
}

/**
 * A list that is fetched page by page while it is read. Each loop over it fetches it anew.
 *
 * @example
 * for await (const disk of berth.disks.list()) console.log(disk.name);
 */
export class Pages<T> implements AsyncIterable<T> {
  readonly #fetch: (cursor: string | undefined) => Promise<Page<T>>;

  /** @internal */
  constructor(fetch: (cursor: string | undefined) => Promise<Page<T>>) {
    this.#fetch = fetch;
  }

  /** The entries of all pages. */
  async *[Symbol.asyncIterator](): AsyncGenerator<T, void, undefined> {
    for await (const { items } of this.pages()) yield* items;
  }

  /** The pages themselves. */
  async *pages(): AsyncGenerator<Page<T>, void, undefined> {
    let cursor: string | undefined;
    do {
      const page = await this.#fetch(cursor);
      yield page;
      cursor = page.nextCursor;
    } while (cursor !== undefined);
  }

  /** All entries at once. */
  async toArray(): Promise<T[]> {
    const all: T[] = [];
    for await (const { items } of this.pages()) all.push(...items);
    return all;
  }
}
