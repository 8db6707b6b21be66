/** By how much a guest's clock is wrong at least, given how long it took to ask for its time. */
export async function clockErrorMs(
  outputOf: (command: string) => Promise<string>,
): Promise<number> {
  const before = Date.now();
  const guestMs = Number(await outputOf('date +%s%N')) / 1e6;
  const after = Date.now();
  return Math.round(Math.max(before - guestMs, guestMs - after, 0));
}
