/**
 * Works on all items, `count` at a time. The first failure ends it once those under way have ended.
 */
export async function inParallel<T>(
  items: readonly T[],
  count: number,
  work: (item: T) => Promise<void>,
): Promise<void> {
  const left = items[Symbol.iterator]();
  let failure: { readonly error: unknown } | undefined;
  const worker = async (): Promise<void> => {
    for (let next = left.next(); next.done !== true; next = left.next()) {
      if (failure !== undefined) return;
      try {
        await work(next.value);
      } catch (error) {
        failure ??= { error };
      }
    }
  };
  await Promise.all(Array.from({ length: Math.min(count, items.length) }, worker));
  if (failure !== undefined) throw failure.error;
}
