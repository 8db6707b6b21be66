import { PassThrough } from 'node:stream';
import type { SandboxFiles, WriteFileOptions } from '@berth/sdk';
import { Refused, unsupported } from './failure.ts';

const WAITING_BYTES_MAX = 1024 * 1024;

/** How a file is opened to be written. */
export interface UploadOptions {
  /** How many bytes of the present file count: none when it is to be emptied. */
  readonly kept: number;
  /** Bytes go to the end, whatever the client says. */
  readonly appends: boolean;
  readonly write: WriteFileOptions;
}

/**
 * A file that a client writes, from some byte on and in order. It gets its name when the client
 * closes it, with all its bytes: until then, and when the client goes before, the old file stays.
 */
export class Upload {
  readonly #files: SandboxFiles;
  readonly #path: string;
  readonly #options: UploadOptions;
  readonly #pieces = new PassThrough({ writableHighWaterMark: WAITING_BYTES_MAX });
  #written: Promise<unknown> | undefined;
  #failure: Error | undefined;
  /** Ends the write that waits: a destroyed stream leaves the callbacks of those uncalled. */
  #rejectWrite: ((error: Error) => void) | undefined;
  /** Where the next byte belongs. */
  #at = 0;

  constructor(files: SandboxFiles, path: string, options: UploadOptions) {
    this.#files = files;
    this.#path = path;
    this.#options = options;
    if (options.appends) this.#at = options.kept;
    this.#pieces.on('error', () => undefined); // Told by what waits for it.
  }

  /** How many bytes the file has got. */
  get size(): number {
    return Math.max(this.#at, this.#options.kept);
  }

  /**
   * Resolves when the bytes are on their way: at the pace of the server. The next write comes after
   * that.
   * @throws Error when the upload has failed
   */
  async write(offset: number, bytes: Buffer): Promise<void> {
    if (this.#failure !== undefined) throw this.#failure;
    if (this.#written === undefined) this.#begin(this.#options.appends ? this.#at : offset);
    if (offset !== this.#at && !this.#options.appends) {
      throw this.#fail(unsupported(`${this.#path} is written in order only`));
    }
    this.#at += bytes.length;
    await new Promise<void>((resolve, reject) => {
      this.#rejectWrite = reject;
      this.#pieces.write(bytes, (error) => {
        if (error) reject(this.#failure ?? error);
        else resolve();
      });
    });
  }

  /** Puts the file in place. */
  async close(): Promise<void> {
    if (this.#failure !== undefined) throw this.#failure;
    const { kept, write } = this.#options;
    if (this.#written !== undefined) {
      this.#pieces.end();
      await this.#written;
    } else if (kept === 0) await this.#files.write(this.#path, '', write);
  }

  /** Leaves what was there before. */
  async abandon(): Promise<void> {
    this.#fail(new Refused('the client went before it had closed the file'));
    await this.#written?.catch(() => undefined);
  }

  #begin(offset: number): void {
    if (offset > this.#options.kept) {
      throw this.#fail(unsupported(`${this.#path} would have a hole before byte ${offset}`));
    }
    this.#at = offset;
    // A client that resumes an upload has written what is before, or wants it to stay.
    const content = this.#content(offset);
    this.#written = this.#files.write(this.#path, content, this.#options.write);
    this.#written.catch((error: unknown) => this.#fail(error as Error));
  }

  async *#content(begin: number): AsyncGenerator<Uint8Array, void, undefined> {
    if (begin > 0) yield* await this.#files.read(this.#path, { length: begin });
    yield* this.#pieces as AsyncIterable<Uint8Array>;
    const { kept } = this.#options;
    if (this.#at < kept) yield* await this.#files.read(this.#path, { offset: this.#at });
  }

  #fail(error: Error): Error {
    this.#failure ??= error;
    this.#pieces.destroy(this.#failure);
    this.#rejectWrite?.(this.#failure);
    return this.#failure;
  }
}
