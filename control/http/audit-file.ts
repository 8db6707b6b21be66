import { constants } from 'node:fs';
import { open } from 'node:fs/promises';
import { errnoOf } from '../../shared/errors.ts';
import { HTTP_LIMITS } from './limits.ts';

/**
 * A file to which lines are appended, several at a time when they come faster than they are
 * written. It is opened anew for each write, so it can be renamed or cut at any time, as logrotate
 * does.
 */
export class AuditFile {
  readonly #path: string;
  #waiting: string[] = [];
  #last: Promise<void> = Promise.resolve();
  #next: Promise<void> | undefined;
  /** Whether a write, a former process's perhaps, may have been cut off in a line. */
  #mayEndInLine = true;

  constructor(path: string) {
    this.#path = path;
  }

  /**
   * Settles when the line has been written.
   * @throws Error when it could not be, or too many lines wait: the storage may hang for good
   */
  async append(line: string): Promise<void> {
    if (this.#waiting.length >= HTTP_LIMITS.auditLinesWaitingMax)
      throw new Error(`the audit log is not written: ${this.#waiting.length} lines wait`);
    this.#waiting.push(`${line}\n`);
    this.#next ??= this.#writeAfter(this.#last);
    await this.#next;
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
    const isCutOff = this.#mayEndInLine && (await endsInLine(this.#path));
    this.#mayEndInLine = true;
    await using file = await open(this.#path, 'a', 0o600);
    await file.appendFile(isCutOff ? `\n${text}` : text);
    this.#mayEndInLine = false;
  }
}

/** Whether the last line of a file has no end; what is no file, a pipe perhaps, has whole lines. */
async function endsInLine(path: string): Promise<boolean> {
  try {
    await using file = await open(path, constants.O_RDONLY | constants.O_NONBLOCK);
    const found = await file.stat();
    if (!found.isFile() || found.size === 0) return false;
    const { buffer } = await file.read({ buffer: Buffer.alloc(1), position: found.size - 1 });
    return buffer.toString('latin1') !== '\n';
  } catch (error) {
    if (errnoOf(error) === undefined) throw error;
    return false; // The write says what is wrong.
  }
}
