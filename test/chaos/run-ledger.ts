import type { Findings } from './findings.ts';

/** How often a command may have run, given the answer to its caller. */
const RUNS_ALLOWED: Readonly<Record<string, readonly [least: number, most: number]>> = {
  ok: [1, 1],
  // The outcome is unknown: at most once.
  cut: [0, 1],
  outcome_unknown: [0, 1],
  timeout: [0, 1],
  internal_server_error: [0, 1],
  // The command ran and failed, or its runtime was killed.
  failed: [0, 1],
};
/** Every other answer says that the command was not begun. */
const NEVER_BEGAN = [0, 0] as const;

interface Told {
  readonly code: string;
  readonly atMs: number;
}

/** Records the answers to commands, each of which appends its own line to one file. */
export class RunLedger {
  readonly #name: string;
  readonly #noun: string;
  readonly #findings: Findings;
  readonly #told = new Map<string, Told>();
  readonly #reported = new Set<string>();
  #count = 0;

  /**
   * @param name of the file, for findings
   * @param noun for findings and counts
   */
  constructor(name: string, findings: Findings, noun = 'command') {
    this.#name = name;
    this.#noun = noun;
    this.#findings = findings;
  }

  /** The number of the next command's line. */
  newId(): string {
    this.#count += 1;
    return `${this.#name}-${this.#count}`;
  }

  tell(id: string, code: string): void {
    this.#told.set(id, { code, atMs: this.#findings.elapsedMs });
    if (code === 'ok') this.#findings.count(`acknowledged ${this.#noun}s`);
  }

  /** Compares the answers with the file's text. */
  check(text: string): void {
    const runs = new Map<string, number>();
    for (const line of text.split('\n')) {
      if (line === '') continue;
      if (!this.#told.has(line)) {
        const shown = JSON.stringify(line.slice(0, 80));
        this.#findings.report(`${this.#name}: a line that nobody wrote: ${shown}`);
      }
      runs.set(line, (runs.get(line) ?? 0) + 1);
    }
    if (text !== '' && !text.endsWith('\n')) {
      this.#findings.report(`${this.#name}: the last line is torn`);
    }
    for (const [id, { code, atMs }] of this.#told)
      this.#checkOne(id, code, atMs, runs.get(id) ?? 0);
  }

  #checkOne(id: string, code: string, atMs: number, runs: number): void {
    const [least, most] = RUNS_ALLOWED[code] ?? NEVER_BEGAN;
    if (this.#reported.has(id)) return; // Once is enough.
    if (runs >= least && runs <= most) return;
    if (runs < least) this.#findings.count('losses');
    if (runs > 1) this.#findings.count('doubles');
    this.#findings.report(
      `${this.#noun} ${id}, told "${code}" at ${(atMs / 1000).toFixed(1)} s, is there ${runs} times`,
    );
    this.#reported.add(id);
  }
}
