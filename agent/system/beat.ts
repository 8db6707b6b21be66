import { SYSTEM_LIMITS } from './limits.ts';

interface Work {
  /** At every so many beats. */
  readonly beats: number;
  readonly begin: () => void;
}

/**
 * The rhythm in which a host repeats its work in the directory. All work that is due begins in the
 * same turn of the event loop: its commands reach Redis in one pipeline, and Redis syncs its file
 * once for all of them. In a Redis Cluster the commands of each primary arrive together.
 */
export class Beat {
  readonly #works = new Set<Work>();
  #count = 0;

  constructor() {
    // The host's servers keep the process alive, not its beat.
    setInterval(() => this.#next(), SYSTEM_LIMITS.hostReportMs).unref();
  }

  /**
   * Begins work at regular beats, the first time within `everyMs` from now.
   * @param everyMs a multiple of `hostReportMs`
   * @returns a function that stops the repetition
   */
  every(everyMs: number, begin: () => void): () => void {
    const work = { beats: Math.max(1, Math.round(everyMs / SYSTEM_LIMITS.hostReportMs)), begin };
    this.#works.add(work);
    return () => this.#works.delete(work);
  }

  #next(): void {
    this.#count += 1;
    for (const { beats, begin } of this.#works) if (this.#count % beats === 0) begin();
  }
}
