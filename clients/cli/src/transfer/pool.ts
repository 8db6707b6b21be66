/** How many files are under way at once, unless the caller says otherwise. */
export const JOBS = 16;

/** Does the work for each item, so many at a time. The first error ends it, when all that was begun is over. */
export async function forEachOf<T>(
  items: Iterable<T> | AsyncIterable<T>,
  jobs: number,
  work: (item: T) => Promise<void>,
): Promise<void> {
  const source =
    Symbol.asyncIterator in items ? items[Symbol.asyncIterator]() : items[Symbol.iterator]();
  let failure: Error | undefined;
  // An iterator is asked once at a time: its answers come in order.
  let turn: Promise<unknown> = Promise.resolve();
  const next = (): Promise<IteratorResult<T>> => {
    const asked = turn.then(() => source.next());
    turn = asked.catch(() => undefined);
    return asked as Promise<IteratorResult<T>>;
  };
  const worker = async (): Promise<void> => {
    while (failure === undefined) {
      const { done, value } = await next();
      if (done === true) return;
      await work(value);
    }
  };
  const workers = Array.from({ length: jobs }, () =>
    worker().catch((error: unknown) => {
      failure ??= error as Error;
    }),
  );
  await Promise.all(workers);
  if (failure !== undefined) throw failure;
}
