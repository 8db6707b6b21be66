import { hash } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { framingOf } from '../../../../shared/http/http-framing.ts';
import type { Origin } from '../../../../shared/links/forward-request.ts';
import { EDGE_LIMITS } from '../../limits.ts';
import { AwsChunkedDecoder, readDecodedLength } from '../auth/aws-chunked.ts';
import { BodyChecks, readTrailerNames } from '../auth/checksums.ts';
import type { Checksum } from '../protocol/checksum.ts';
import { readFile } from './post-form.ts';
import { S3Error } from '../protocol/errors.ts';
import type { Admission } from '../auth/principal.ts';
import { headerValue, type RawHeaders } from '../protocol/raw-headers.ts';
import type { VerifyDigests } from '../store/write-body.ts';

export interface BodyOptions {
  /** The most bytes accepted; a longer announced length is refused before anything is read. */
  readonly bytesMax: number;
  /** Set for CompleteMultipartUpload, whose checksum headers describe the object, not the body. */
  readonly checksumsOfObject?: boolean;
}

export interface StreamedBody {
  /**
   * Fails with the end of the body unless it is what its signature and framing say.
   * S3Error: EntityTooLarge, IncompleteBody, XAmzContentSHA256Mismatch and others
   */
  readonly bytes: AsyncIterable<Buffer>;
  /** To be taken of the bytes. */
  readonly checksum?: Checksum;
  /** Throws an S3Error unless the digests are those that the request declares. */
  readonly verify: VerifyDigests;
}

const isChecksumHeader = (name: string): boolean => /^x-amz-checksum-/iu.test(name);

const withoutChecksums = (headers: RawHeaders): RawHeaders =>
  headers.filter((_, index) => !isChecksumHeader(headers[index - (index % 2)] ?? ''));

/** The body of a request: decoded, bounded, and verified against what the request says of it. */
export class RequestBody {
  readonly #request: IncomingMessage;
  readonly #headers: RawHeaders;
  readonly #admission: Admission;
  readonly #lacksLength: boolean;
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
      readonly origin: Pick<Origin, 'lacksLength'>;
    },
    onRead: () => void,
  ) {
    this.#request = parts.request;
    this.#headers = parts.headers;
    this.#admission = parts.admission;
    this.#lacksLength = parts.origin.lacksLength !== undefined;
    this.#onRead = onRead;
  }

  /**
   * Announced bytes of the decoded body; undefined when it comes in chunks.
   * @throws S3Error MissingContentLength, InvalidArgument
   */
  get length(): number | undefined {
    const rawHeaders = this.#headers;
    const { payload } = this.#admission;
    if (payload.kind === 'aws-chunked') {
      return readDecodedLength(headerValue(rawHeaders, 'x-amz-decoded-content-length'));
    }
    const framing = this.#lacksLength ? 'none' : framingOf(this.#request);
    if (framing === 'none') {
      throw new S3Error('MissingContentLength', 'Content-Length or chunks are required.');
    }
    return framing === 'chunked' ? undefined : framing;
  }

  /**
   * The body for whoever stores it.
   * @throws S3Error EntityTooLarge, and what the headers of the body are refused with
   */
  stream({ bytesMax, checksumsOfObject = false }: BodyOptions): StreamedBody {
    const { payload } = this.#admission;
    const tooLarge = new S3Error('EntityTooLarge', `The body may have at most ${bytesMax} bytes.`);
    if ((this.length ?? 0) > bytesMax) throw tooLarge;
    const headers = checksumsOfObject ? withoutChecksums(this.#headers) : this.#headers;
    const checks = BodyChecks.read(headers, payload);
    const decoder = payload.kind === 'aws-chunked' ? this.#decode(payload) : undefined;
    return {
      bytes: this.#read(decoder, checks, tooLarge, bytesMax),
      ...(checks.checksum === undefined ? {} : { checksum: checks.checksum }),
      verify: (digests) => checks.verify(digests, decoder?.trailers),
    };
  }

  /**
   * The whole of a small body, verified.
   * @throws S3Error as `stream`, and BadDigest
   */
  async readAll(options: BodyOptions): Promise<Buffer> {
    const { bytes, checksum, verify } = this.stream(options);
    const chunks: Buffer[] = [];
    for await (const chunk of bytes) chunks.push(chunk);
    const whole = Buffer.concat(chunks);
    checksum?.addNow(whole);
    verify({ md5: hash('md5', whole, 'buffer'), checksum: checksum?.digest() });
    return whole;
  }

  /** The file of a form; fails unless the form is complete. */
  async *readFile(): AsyncGenerator<Buffer> {
    this.#onRead();
    yield* readFile(this.#request, this.#bytes(undefined));
  }

  async *#read(
    decoder: AwsChunkedDecoder | undefined,
    checks: BodyChecks,
    tooLarge: S3Error,
    bytesMax: number,
  ): AsyncGenerator<Buffer> {
    this.#onRead();
    let bytes = 0;
    for await (const chunk of this.#bytes(decoder)) {
      bytes += chunk.length;
      if (bytes > bytesMax) throw tooLarge;
      checks.update(chunk);
      yield chunk;
    }
    checks.verifyPayload();
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
export const xmlBody: BodyOptions = { bytesMax: EDGE_LIMITS.xmlBodyBytesMax };
