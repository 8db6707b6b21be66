import type { FileDownload, SandboxFile, SandboxFiles } from '@berth/sdk';

/** More than a client asks for at once. */
const READ_BYTES_MAX = 256 * 1024;

/**
 * A file that a client reads. Clients read from the beginning to the end, so one request to the
 * server serves all of it; a read elsewhere begins another one.
 */
export class Download {
  readonly #files: SandboxFiles;
  readonly #path: string;
  readonly #file: SandboxFile;
  #source: FileDownload | undefined;
  #pieces: AsyncIterator<Uint8Array> | undefined;
  #rest: Uint8Array = new Uint8Array();
  /** Where the next byte of the source belongs. */
  #at = 0;

  /** @param file what is at the path */
  constructor(files: SandboxFiles, path: string, file: SandboxFile) {
    this.#files = files;
    this.#path = path;
    this.#file = file;
  }

  /** @returns undefined after the end @throws PreconditionError when the file has changed */
  async read(offset: number, length: number): Promise<Buffer | undefined> {
    const wanted = Math.min(length, READ_BYTES_MAX, this.#file.size - offset);
    if (wanted <= 0) return undefined;
    if (this.#pieces === undefined || offset !== this.#at) await this.#seek(offset);
    const parts: Uint8Array[] = [];
    let missing = wanted;
    while (missing > 0 && (await this.#fill())) {
      const part = this.#rest.subarray(0, missing);
      this.#rest = this.#rest.subarray(part.length);
      parts.push(part);
      missing -= part.length;
    }
    this.#at += wanted - missing;
    return missing === wanted ? undefined : Buffer.concat(parts);
  }

  async close(): Promise<void> {
    await this.#pieces?.return?.();
    await this.#source?.cancel();
  }

  async #seek(offset: number): Promise<void> {
    await this.close();
    const { etag } = this.#file;
    const ifMatch = etag === undefined ? {} : { ifMatch: etag };
    this.#source = await this.#files.read(this.#path, { offset, ...ifMatch });
    this.#pieces = this.#source[Symbol.asyncIterator]();
    this.#rest = new Uint8Array();
    this.#at = offset;
  }

  /** @returns whether there is a byte to take */
  async #fill(): Promise<boolean> {
    while (this.#rest.length === 0) {
      const next = await this.#pieces?.next();
      if (next === undefined || next.done === true) return false;
      this.#rest = next.value;
    }
    return true;
  }
}
