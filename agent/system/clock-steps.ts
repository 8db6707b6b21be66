const LOOK_EVERY_MS = 500;
const STEP_MS_MIN = 50;

const listeners = new Set<() => void>();
let timer: NodeJS.Timeout | undefined;
let known = 0;

/** The time of day when the monotonic clock began, which stands still in a suspended host. */
const read = (): number => Date.now() - performance.now();

function look(): void {
  const now = read();
  const isStepped = Math.abs(now - known) > STEP_MS_MIN;
  known = now;
  if (!isStepped) return;
  for (const listener of listeners) listener();
}

/**
 * Calls a listener when the host's time of day was set, or went on while the host was suspended.
 * One timer looks for all listeners, while there are any.
 * @returns ends that
 */
export function onClockStep(listener: () => void): () => void {
  if (listeners.size === 0) {
    known = read();
    timer = setInterval(look, LOOK_EVERY_MS);
    timer.unref();
  }
  listeners.add(listener);
  return () => {
    listeners.delete(listener);
    if (listeners.size === 0) clearInterval(timer);
  };
}
