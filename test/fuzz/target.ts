/** A boundary of the system, to be fed any bytes that its peer could send. */
export interface Target {
  readonly name: string;
  /** The first inputs, and the basis of mutations, while there is no corpus. */
  readonly seeds: readonly (string | Buffer)[];
  /** Words of the input's language, which random mutations would not find. */
  readonly words: readonly string[];
  /** Resources of the boundary: parts that `run` needs. Ended when the run is over. */
  readonly open?: () => Promise<AsyncDisposable>;
  /** How many inputs a run without a time limit takes; set by slower targets. */
  readonly executions?: number;
  /**
   * Gives the input to the boundary and checks what must hold of its answer.
   * @throws anything when it does not hold; refusals that are part of the boundary it catches
   *   itself
   */
  run(input: Buffer): void | Promise<void>;
}

/** Errors with which a boundary may refuse an input. All others are defects. */
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

/**
 * Whether an error was thrown on purpose. Errors of the language itself (TypeError …) are defects.
 */
export const isOwnError: Refusal = (error) =>
  error instanceof Error &&
  !(error instanceof TypeError) &&
  !(error instanceof RangeError) &&
  !(error instanceof ReferenceError);

/** Cuts an input into pieces of this many bytes. */
export function* cut(input: Buffer, bytes: number): Generator<Buffer> {
  for (let at = 0; at < input.length; at += bytes) yield input.subarray(at, at + bytes);
}
