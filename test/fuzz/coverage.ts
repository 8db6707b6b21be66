import { type Profiler, Session } from 'node:inspector';

const root = new URL('../../', import.meta.url).href;
const sources = ['agent/', 'control/', 'shared/'].map((directory) => `${root}${directory}`);

/** Which characters of one function's text were run, a byte for each. */
type Covered = Map<string, Uint8Array>;

/**
 * Which parts of our sources were run, as V8 counts them itself: no code has to be instrumented,
 * and positions are those of the TypeScript that Node runs.
 */
export class Coverage implements Disposable {
  readonly #session = new Session();
  readonly #seen: Covered = new Map();

  constructor() {
    this.#session.connect();
    this.#session.post('Profiler.enable');
    this.#session.post('Profiler.startPreciseCoverage', { callCount: true, detailed: true });
  }

  /** @returns whether something was run since the last call that had never been run before */
  takeNew(): boolean {
    return this.#take((name, covered) => {
      const seen = this.#seen.get(name) ?? new Uint8Array(covered.length);
      this.#seen.set(name, seen);
      for (const [at, isRun] of covered.entries()) if (isRun === 1) seen[at] = 1;
    });
  }

  /** Like `takeNew`, but does not mark the code as seen. */
  peekNew(): boolean {
    return this.#take(() => undefined);
  }

  #take(onNew: (name: string, covered: Uint8Array) => void): boolean {
    let isAnyNew = false;
    // A session of this thread answers before the call returns.
    this.#session.post('Profiler.takePreciseCoverage', (error, coverage) => {
      if (error !== null) throw error;
      for (const script of coverage.result) {
        if (!sources.some((source) => script.url.startsWith(source))) continue;
        for (const { ranges } of script.functions) {
          const [name, covered] = coveredOf(script.url, ranges);
          const seen = this.#seen.get(name);
          if (!covered.some((isRun, at) => isRun === 1 && seen?.[at] !== 1)) continue;
          isAnyNew = true;
          onNew(name, covered);
        }
      }
    });
    return isAnyNew;
  }

  [Symbol.dispose](): void {
    this.#session.disconnect();
  }
}

/** The ranges are nested, the outer before the inner; those that count alike are told as one. */
function coveredOf(
  url: string,
  ranges: readonly Profiler.CoverageRange[],
): [name: string, covered: Uint8Array] {
  const { startOffset = 0, endOffset = 0 } = ranges[0] ?? {};
  const covered = new Uint8Array(endOffset - startOffset);
  for (const range of ranges) {
    covered.fill(
      range.count > 0 ? 1 : 0,
      range.startOffset - startOffset,
      range.endOffset - startOffset,
    );
  }
  return [`${url} ${startOffset} ${endOffset}`, covered];
}
