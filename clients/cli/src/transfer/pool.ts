/** How many files are under way at once, unless the caller says otherwise. */
export const JOBS = 16;

/**
 * Does the work for each item, so many at a time. The first error ends it, when all that was begun
 * is over.
 */
export async function forEachOf<T>(
  items: Iterable<T> | AsyncIterable<T>,
  jobs: number,
  work: (item: T) => Promise<void>,
): Promise<void> {
  const failures: unknown[] = [];
  // A generator answers in the order in which it was asked, so that workers may share one.
  const source = each(items);
  const worker = async (): Promise<void> => {
    try {
      while (failures.length === 0) {
        const next = await source.next();
        if (next.done === true) return;
        await work(next.value);
      }
    } catch (error) {
      failures.push(error);
    }
  };
  await Promise.all(Array.from({ length: jobs }, worker));
  if (failures.length > 0) throw failures[0] as Error;
}

async function* each<T>(items: Iterable<T> | AsyncIterable<T>): AsyncGenerator<T, void, undefined> {
  yield* items;
}
