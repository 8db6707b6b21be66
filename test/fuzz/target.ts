/** One boundary of the system, given whatever bytes another side could send. */
export interface Target {
  readonly name: string;
  /** What is tried first, and what mutations begin with, when there is no corpus yet. */
  readonly seeds: readonly (string | Buffer)[];
  /** Pieces of the input's language, which chance alone would not find. */
  readonly words: readonly string[];
  /** What the boundary lets out: parts that `run` needs. Ended when the run is over. */
  readonly open?: () => Promise<AsyncDisposable>;
  /** Slower targets say how many inputs a run without a time limit takes. */
  readonly executions?: number;
  /**
   * Gives the input to the boundary and checks what must hold of its answer.
   * @throws anything when it does not hold; refusals that are part of the boundary it catches itself
   */
  run(input: Buffer): void | Promise<void>;
}

/** Errors with which a boundary may refuse an input; all others are defects. */
export type Refusal = (error: unknown) => boolean;

/** The work's result, or undefined when it refused. */
export function unlessRefused<T>(isRefusal: Refusal, work: () => T): T | undefined {
  try {
    return work();
  } catch (error) {
    if (!isRefusal(error)) throw error;
    return undefined;
  }
}

/** An error thrown on purpose: those of the language itself mean that something was overlooked. */
export const isOwnError: Refusal = (error) =>
  error instanceof Error &&
  !(error instanceof TypeError) &&
  !(error instanceof RangeError) &&
  !(error instanceof ReferenceError);

/** Cuts an input in pieces of this many bytes. */
export function* cut(input: Buffer, bytes: number): Generator<Buffer> {
  for (let at = 0; at < input.length; at += bytes) yield input.subarray(at, at + bytes);
}
