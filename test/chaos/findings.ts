/** A broken promise of the system, and when it was noticed. */
export interface Finding {
  /** Since the beginning of the run. */
  readonly atMs: number;
  readonly what: string;
}

const FINDINGS_MAX = 200;
/** The longest time that a call which needed the program can take. */
const EXPLAINED_MS = 25_000;

/** Everything that a run found and counted. */
export class Findings {
  readonly broken: Finding[] = [];
  #explainedUntil = 0;
  readonly #counts = new Map<string, number>();
  /** On the clock of performance.now(). */
  readonly beganAt = performance.now();

  get elapsedMs(): number {
    return Math.round(performance.now() - this.beganAt);
  }

  /** Records that a helper program was killed, which explains internal errors for a while. */
  programWasKilled(): void {
    this.#explainedUntil = performance.now() + EXPLAINED_MS;
  }

  get explainsInternalErrors(): boolean {
    return performance.now() < this.#explainedUntil;
  }

  /** Records a broken promise. */
  report(what: string): void {
    if (this.broken.length < FINDINGS_MAX) this.broken.push({ atMs: this.elapsedMs, what });
  }

  count(what: string, by = 1): void {
    this.#counts.set(what, (this.#counts.get(what) ?? 0) + by);
  }

  /** Counts, sorted by name. */
  get counts(): readonly (readonly [name: string, count: number])[] {
    return [...this.#counts].sort(([a], [b]) => (a < b ? -1 : 1));
  }

  countOf(what: string): number {
    return this.#counts.get(what) ?? 0;
  }
}
