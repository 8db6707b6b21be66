import { BerthError, ConnectionError } from '../errors.ts';
import { backoffMs, reasonOf, sleep } from '../timing.ts';
import { bodyPieces } from './body-pieces.ts';
import type { FetchAnswer } from '../transport.ts';

/** Which part of a file: all of it when both are left out. */
export interface FileRange {
  /** The first byte wanted; negative: counted from the end of the file. */
  readonly offset?: number | undefined;
  /** How many bytes at most; not with a negative offset. */
  readonly length?: number | undefined;
}

/** @internal Fetches content. @param etag only of the file with this tag */
export type FetchContent = (
  range: string | undefined,
  etag: string | undefined,
) => Promise<FetchAnswer>;

/** @internal The header `Range`. @throws BerthError `bad_range` */
export function rangeHeader({ offset = 0, length }: FileRange): string | undefined {
  const isNumber = Number.isSafeInteger(offset) && (length === undefined || length > 0);
  if (!isNumber || (offset < 0 && length !== undefined)) {
    const what = 'offset is an integer, length at least 1 and not given with a negative offset';
    throw new BerthError('bad_range', what);
  }
  if (offset < 0) return `bytes=${offset}`;
  if (length !== undefined) return `bytes=${offset}-${offset + length - 1}`;
  return offset === 0 ? undefined : `bytes=${offset}-`;
}

/**
 * @internal Headers of a request for content. A proxy that compresses would take its length away,
 * and a part of a compressed form says nothing about the file. Browsers choose their encodings
 * themselves.
 */
export const downloadHeaders = (
  range?: string,
  etag?: string,
): Readonly<Record<string, string | undefined>> => ({
  'accept-encoding': 'identity',
  range,
  'if-match': etag,
});

type Headers = FetchAnswer['headers'];

/**
 * @internal The ETag as Berth sent it. Berth's are strong; a proxy that compresses makes them weak,
 * and `If-Match` takes no weak ones (https://www.rfc-editor.org/rfc/rfc9110#section-13.1.1).
 */
export const etagOf = (headers: Headers): string | undefined =>
  headers.get('etag')?.replace(/^W\//u, '');

/**
 * How many bytes of content come, where the answer says so: the length of a compressed form is
 * another.
 */
function lengthOf(headers: Headers): number | undefined {
  const length = headers.get('content-length');
  return length === null || isEncoded(headers) ? undefined : Number(length);
}

const isEncoded = (headers: Headers): boolean =>
  !['', 'identity'].includes(headers.get('content-encoding') ?? '');

/** Longer than the server itself waits for a file system. */
const SILENCE_MS_MAX = 90_000;
const BACKOFF_FIRST_MS = 200;
const BACKOFF_MAX_MS = 5_000;
const PARTIAL_CONTENT = 206;

const resize = (bytes: Uint8Array<ArrayBuffer>, length: number): Uint8Array<ArrayBuffer> =>
  new Uint8Array(bytes.buffer.transfer(length));

/**
 * A file, or a part of it, that is open to be read. Its content is read once. When the connection
 * breaks, reading goes on at the byte where it broke, and ends with `PreconditionError` if the file
 * has changed since. A file that is not read is to be cancelled.
 *
 * Content that a proxy compresses, and objects that were stored with a `Content-Encoding`, have no
 * known length; when their connection breaks, reading fails.
 *
 * @example
 * const file = await sandbox.files.read('/var/log/big.log');
 * for await (const bytes of file) write(bytes);
 */
export class FileDownload implements AsyncIterable<Uint8Array>, AsyncDisposable {
  /** Size of the whole file, in bytes; undefined when the server does not say it. */
  readonly size: number | undefined;
  /** Where the part begins that comes. */
  readonly offset: number;
  /** How many bytes come; undefined when the server does not say it. */
  readonly length: number | undefined;
  /** Changes with the content of the file. */
  readonly etag: string | undefined;
  /** When the content was last changed, to the second. */
  readonly modifiedAt: Date | undefined;
  readonly contentType: string | undefined;
  readonly #fetch: FetchContent;
  readonly #retries: number;
  readonly #signal: AbortSignal | undefined;
  #response: FetchAnswer | undefined;

  /** @internal */
  constructor(
    response: FetchAnswer,
    fetch: FetchContent,
    { retries, signal }: { readonly retries: number; readonly signal: AbortSignal | undefined },
  ) {
    const { headers } = response;
    const part = /^bytes (\d+)-(\d+)\/(\d+)$/u.exec(headers.get('content-range') ?? '');
    this.length = lengthOf(headers);
    this.offset = part === null ? 0 : Number(part[1]);
    this.size = part === null || this.length === undefined ? this.length : Number(part[3]);
    this.etag = etagOf(headers);
    this.contentType = headers.get('content-type') ?? undefined;
    const modified = headers.get('last-modified');
    this.modifiedAt = modified === null ? undefined : new Date(modified);
    this.#response = response;
    this.#fetch = fetch;
    this.#retries = retries;
    this.#signal = signal;
  }

  /** @throws PreconditionError, ConnectionError; BerthError `content_taken` the second time */
  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array, void, undefined> {
    let response: FetchAnswer | undefined = this.#take();
    const end = this.offset + (this.length ?? Infinity);
    // No part can be asked for of content that is encoded on its way.
    const isResumable = this.etag !== undefined && this.length !== undefined;
    let failures = 0;
    for (let at = this.offset; ;) {
      try {
        response ??= await this.#resume(at, end);
        for await (const piece of bodyPieces(response, SILENCE_MS_MAX, this.#signal)) {
          at += piece.length;
          failures = 0;
          yield piece;
        }
        if (at >= end || this.length === undefined) return;
        throw new ConnectionError('the content ended early');
      } catch (error) {
        if (this.#signal?.aborted === true) throw reasonOf(this.#signal);
        if (at === end) return;
        const mayPass = error instanceof ConnectionError && isResumable && at < end;
        if (!mayPass || failures >= this.#retries) throw error;
        await sleep(backoffMs(failures, BACKOFF_FIRST_MS, BACKOFF_MAX_MS), this.#signal);
        failures += 1;
      }
      response = undefined;
    }
  }

  /** The content as a stream, for `pipeTo`, `Response` and the like. */
  stream(): ReadableStream<Uint8Array<ArrayBuffer>> {
    const pieces = this[Symbol.asyncIterator]();
    return new ReadableStream<Uint8Array<ArrayBuffer>>(
      {
        async pull(controller) {
          const { done, value } = await pieces.next();
          if (done === true) controller.close();
          else controller.enqueue(value as Uint8Array<ArrayBuffer>);
        },
        async cancel() {
          await pieces.return();
        },
      },
      { highWaterMark: 0 },
    );
  }

  /** All of it. */
  async bytes(): Promise<Uint8Array<ArrayBuffer>> {
    let all = new Uint8Array(this.length ?? 0);
    let at = 0;
    for await (const piece of this) {
      const end = at + piece.length;
      if (end > all.length) all = resize(all, Math.max(end, 2 * all.length));
      all.set(piece, at);
      at = end;
    }
    return at === all.length ? all : resize(all, at);
  }

  /** All of it, read as UTF-8. */
  async text(): Promise<string> {
    return new TextDecoder().decode(await this.bytes());
  }

  /** All of it. Browsers keep a large one on their disk. */
  blob(): Promise<Blob> {
    return new Response(this.stream()).blob();
  }

  /** Ends the request of a file whose content is not wanted. */
  async cancel(): Promise<void> {
    const response = this.#response;
    this.#response = undefined;
    await response?.body?.cancel();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.cancel();
  }

  #take(): FetchAnswer {
    const response = this.#response;
    if (response === undefined) {
      throw new BerthError('content_taken', 'the content is read already, or was cancelled');
    }
    this.#response = undefined;
    return response;
  }

  async #resume(at: number, end: number): Promise<FetchAnswer> {
    const response = await this.#fetch(`bytes=${at}-${end - 1}`, this.etag);
    if (response.status === PARTIAL_CONTENT && !isEncoded(response.headers)) return response;
    await response.body?.cancel();
    throw new BerthError('range_ignored', 'the server sent the file from its beginning');
  }
}
