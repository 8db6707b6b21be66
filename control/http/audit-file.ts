import { open } from 'node:fs/promises';

/**
 * A file to which lines are appended, several at a time when they come faster than they are written.
 * It is opened anew for each write, so it can be renamed or cut at any time, as logrotate does.
 */
export class AuditFile {
  readonly #path: string;
  #waiting: string[] = [];
  #last: Promise<void> = Promise.resolve();
  #next: Promise<void> | undefined;

  constructor(path: string) {
    this.#path = path;
  }

  /** Settles when the line has been written. @throws Error when it could not be */
  append(line: string): Promise<void> {
    this.#waiting.push(`${line}\n`);
    this.#next ??= this.#writeAfter(this.#last);
    return this.#next;
  }

  async #writeAfter(before: Promise<void>): Promise<void> {
    await before.catch(() => undefined);
    const text = this.#waiting.join('');
    this.#waiting = [];
    this.#last = this.#write(text);
    this.#next = undefined;
    return this.#last;
  }

  async #write(text: string): Promise<void> {
    await using file = await open(this.#path, 'a', 0o600);
    await file.appendFile(text);
  }
}
