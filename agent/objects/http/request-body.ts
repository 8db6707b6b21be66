import type { IncomingMessage } from 'node:http';
import { framingOf } from '../../../shared/http/http-framing.ts';
import { LIMITS } from '../../../shared/limits.ts';
import { AwsChunkedDecoder, readDecodedLength } from '../auth/aws-chunked.ts';
import { BodyChecks, readTrailerNames } from '../auth/checksums.ts';
import { S3Error } from '../protocol/errors.ts';
import type { Admission } from '../auth/principal.ts';
import { headerValue, type RawHeaders } from '../protocol/raw-headers.ts';

export interface BodyOptions {
  /** The most bytes accepted; a longer announced length is refused before anything is read. */
  readonly bytesMax: number;
  /** Set for CompleteMultipartUpload, whose checksum headers describe the object, not the body. */
  readonly checksumsOfObject?: boolean;
}

const isChecksumHeader = (name: string): boolean => /^x-amz-checksum-/iu.test(name);

const withoutChecksums = (headers: RawHeaders): RawHeaders =>
  headers.filter((_, index) => !isChecksumHeader(headers[index - (index % 2)] ?? ''));

/** The body of a request: decoded, bounded, and verified against the request's headers. */
export class RequestBody {
  readonly #request: IncomingMessage;
  readonly #headers: RawHeaders;
  readonly #admission: Admission;
  readonly #onRead: () => void;

  /**
   * @param parts.headers those of the request, and those that its query carries
   * @param onRead called before the body is read, so that a client that waits may send it
   */
  constructor(
    parts: {
      readonly request: IncomingMessage;
      readonly headers: RawHeaders;
      readonly admission: Admission;
    },
    onRead: () => void,
  ) {
    this.#request = parts.request;
    this.#headers = parts.headers;
    this.#admission = parts.admission;
    this.#onRead = onRead;
  }

  /** Announced bytes of the decoded body; undefined when the request does not say. */
  get length(): number | undefined {
    const rawHeaders = this.#headers;
    const { payload } = this.#admission;
    if (payload.kind === 'aws-chunked') {
      return readDecodedLength(headerValue(rawHeaders, 'x-amz-decoded-content-length'));
    }
    const framing = framingOf(this.#request);
    if (framing === 'chunked') return undefined;
    return framing === 'none' ? 0 : framing;
  }

  /**
   * Yields the bytes; the last chunk comes only after all of them were verified.
   * @throws S3Error EntityTooLarge, IncompleteBody, BadDigest and others of the modules used
   */
  async *read({ bytesMax, checksumsOfObject = false }: BodyOptions): AsyncGenerator<Buffer> {
    const { payload } = this.#admission;
    const tooLarge = new S3Error('EntityTooLarge', `The body may have at most ${bytesMax} bytes.`);
    if ((this.length ?? 0) > bytesMax) throw tooLarge;
    const rawHeaders = this.#headers;
    const headers = checksumsOfObject ? withoutChecksums(rawHeaders) : rawHeaders;
    const checks = BodyChecks.read(headers, payload);
    const decoder = payload.kind === 'aws-chunked' ? this.#decode(payload) : undefined;
    this.#onRead();
    let bytes = 0;
    for await (const chunk of this.#bytes(decoder)) {
      bytes += chunk.length;
      if (bytes > bytesMax) throw tooLarge;
      checks.update(chunk);
      yield chunk;
    }
    checks.verify(decoder?.trailers);
  }

  /** The whole of a small body. */
  async readAll(options: BodyOptions): Promise<Buffer> {
    const chunks: Buffer[] = [];
    for await (const chunk of this.read(options)) chunks.push(chunk);
    return Buffer.concat(chunks);
  }

  #decode(payload: { readonly signed: boolean; readonly trailer: boolean }): AwsChunkedDecoder {
    const { signature } = this.#admission;
    if (payload.signed && signature === undefined) throw new S3Error('InvalidRequest');
    return new AwsChunkedDecoder({
      decodedBytes: this.length ?? 0,
      trailerNames: readTrailerNames(this.#headers),
      hasTrailer: payload.trailer,
      ...(payload.signed ? { signature } : {}),
    });
  }

  async *#bytes(decoder: AwsChunkedDecoder | undefined): AsyncGenerator<Buffer> {
    const request = this.#request;
    if (decoder === undefined) {
      try {
        // A reader that stops early must still answer on the same connection.
        yield* request.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>;
      } catch (cause) {
        throw cutOff(cause);
      }
      if (!request.complete) throw cutOff();
      return;
    }
    request.once('error', () => decoder.destroy(cutOff()));
    request.once('close', () => {
      if (!request.complete) decoder.destroy(cutOff());
    });
    yield* request.pipe(decoder) as AsyncIterable<Buffer>;
  }
}

const cutOff = (cause?: unknown): S3Error =>
  new S3Error('IncompleteBody', 'The connection ended too early.', { cause });

/** The largest body of an XML document that a client sends. */
export const xmlBody: BodyOptions = { bytesMax: LIMITS.xmlBodyBytesMax };
