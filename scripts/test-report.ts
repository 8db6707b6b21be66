import { stripVTControlCharacters } from 'node:util';

const TICK = /^\s*[✔√] (?<label>.+)$/u;
const CROSS = /^\s*[✘✖×] \[(?:fail|unexpected pass)\]: (?<label>.+)$/u;
const SKIPPED = /^\s*- \[(?:skip|todo)\] (?<label>.+)$/u;
/** Lines that name a file which did not end as it should. */
const UNFINISHED =
  /^\s*(?:[✘✖×] |Uncaught exception in |Unhandled rejection in |\d+ tests? were pending in |Failed to exit when running |Internal error when running ).*?(?<file>test\/\S+\.test\.ts)/u;
const TIME_OUT = /^\s*[✘✖×] Timed out while running tests/u;
/** Failures in AVA's summary. It does not count passed tests when there are any. */
const FAILURE = /^\s*(\d+) (?:tests? failed|uncaught exceptions?|unhandled rejections?)$/u;

/** Parses the output of AVA's default reporter about a run of several files, line by line. */
export class TestReport {
  /** How many tests passed, by file. Tests whose file cannot be told are under the empty name. */
  readonly #passed = new Map<string, number>();
  readonly #failedFiles = new Set<string>();
  readonly #begunFiles = new Set<string>();
  /** The files by the beginning of their tests' titles. */
  readonly #files: ReadonlyMap<string, string>;
  #failed = 0;
  #hasTimedOut = false;

  /** @param files all files of the run, relative to the project, such as `test/a/b.test.ts` */
  constructor(files: readonly string[]) {
    this.#files = new Map(
      files.map((file) => [
        file
          .replace(/^test\//u, '')
          .replace(/\.test\.ts$/u, '')
          .split('/')
          .join(' › '),
        file,
      ]),
    );
  }

  get passed(): number {
    return [...this.#passed.values()].reduce((sum, count) => sum + count, 0);
  }

  get failed(): number {
    return this.#failed;
  }

  /** The files with a failure. The name is empty when it cannot be told. */
  get failedFiles(): readonly string[] {
    return [...this.#failedFiles];
  }

  /** The files that had not begun when the run as a whole timed out. */
  get missedFiles(): readonly string[] {
    if (!this.#hasTimedOut) return [];
    return [...this.#files.values()].filter((file) => !this.#begunFiles.has(file));
  }

  /** How many tests of these files passed. */
  passedIn(files: readonly string[]): number {
    return files.reduce((sum, file) => sum + (this.#passed.get(file) ?? 0), 0);
  }

  read(line: string): void {
    const plain = stripVTControlCharacters(line);
    this.#failed += Number(FAILURE.exec(plain)?.[1] ?? 0);
    if (TIME_OUT.test(plain)) this.#hasTimedOut = true;
    const passed = TICK.exec(plain)?.groups?.['label'];
    if (passed !== undefined) {
      const file = this.#fileOf(passed);
      this.#passed.set(file, (this.#passed.get(file) ?? 0) + 1);
      this.#begunFiles.add(file);
    }
    const skipped = SKIPPED.exec(plain)?.groups?.['label'];
    if (skipped !== undefined) this.#begunFiles.add(this.#fileOf(skipped));
    const failed = CROSS.exec(plain)?.groups?.['label'];
    const file =
      failed === undefined ? UNFINISHED.exec(plain)?.groups?.['file'] : this.#fileOf(failed);
    if (file === undefined) return;
    this.#failedFiles.add(file);
    this.#begunFiles.add(file);
  }

  #fileOf(label: string): string {
    const parts = label.split(' › ');
    for (let count = parts.length - 1; count > 0; count -= 1) {
      const file = this.#files.get(parts.slice(0, count).join(' › '));
      if (file !== undefined) return file;
    }
    return '';
  }
}
