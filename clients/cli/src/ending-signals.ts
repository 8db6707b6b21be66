/** The exit code of a program that signal n ended is this plus n, as in shells. */
export const SIGNALLED = 128;
const SIGNAL_NUMBERS = { SIGHUP: 1, SIGINT: 2, SIGTERM: 15 } as const;
type EndingSignal = keyof typeof SIGNAL_NUMBERS;
const ENDING = Object.keys(SIGNAL_NUMBERS) as EndingSignal[];

/** The signal that this program is to end with. */
let received: EndingSignal | undefined;
const listeners = new Set<() => void>();

function receive(signal: NodeJS.Signals): void {
  // A second one does not wait for a sandbox that does not answer.
  if (received !== undefined) process.exit(SIGNALLED + SIGNAL_NUMBERS[received]);
  received = signal as EndingSignal;
  for (const listener of listeners) listener();
}

/** Keeps signals from ending this program while it has something to clear up. */
export class EndingSignals implements Disposable {
  readonly #onSignal: () => void;

  /** @param onSignal called once: at the first signal, or at once when that has come already */
  constructor(onSignal: () => void) {
    this.#onSignal = onSignal;
    if (listeners.size === 0) for (const signal of ENDING) process.on(signal, receive);
    listeners.add(this.#onSignal);
    if (received !== undefined) onSignal();
  }

  /** The exit code to end with; undefined when no signal has come. */
  get exitCode(): number | undefined {
    return received === undefined ? undefined : SIGNALLED + SIGNAL_NUMBERS[received];
  }

  [Symbol.dispose](): void {
    listeners.delete(this.#onSignal);
    if (listeners.size === 0) for (const signal of ENDING) process.off(signal, receive);
  }
}
