import { createHash, timingSafeEqual, type Hash } from 'node:crypto';
import { Transform, type TransformCallback } from 'node:stream';
import { toError } from '../../../../shared/errors.ts';
import { S3Error } from '../protocol/errors.ts';
import { hmac } from './sigv4-key.ts';
import type { VerifiedSignature } from './sigv4.ts';

// `<16 hex digits>;chunk-signature=<64 hex digits>` and the line end, with some room.
const LINE_LENGTH_MAX = 128;
const TRAILER_LENGTH_MAX = 1024;
const TRAILER_SIGNATURE = 'x-amz-trailer-signature';
const EMPTY_SHA256 = createHash('sha256').digest('hex');

export interface AwsChunkedOptions {
  /** From `x-amz-decoded-content-length`. */
  readonly decodedBytes: number;
  /**
   * Names that `x-amz-trailer` announces, in lower case; these trailers must come and no others.
   */
  readonly trailerNames: readonly string[];
  /** Whether the payload declaration ends with `-TRAILER`. */
  readonly hasTrailer: boolean;
  /** The request's signature, when its chunks are signed. */
  readonly signature?: VerifiedSignature | undefined;
}

const malformed = (why: string): S3Error =>
  new S3Error('InvalidRequest', `The aws-chunked body is malformed: ${why}.`);

/**
 * Reads `x-amz-decoded-content-length`.
 * @throws S3Error MissingContentLength, InvalidArgument
 */
export function readDecodedLength(value: string | undefined): number {
  if (value === undefined) {
    throw new S3Error('MissingContentLength', 'x-amz-decoded-content-length is required.');
  }
  if (!/^[0-9]{1,15}$/.test(value)) {
    throw new S3Error('InvalidArgument', 'x-amz-decoded-content-length must be a number.');
  }
  return Number(value);
}

/** The chain of chunk signatures: each is computed from the previous one and a hash. */
class SignatureChain {
  readonly #request: VerifiedSignature;
  #previous: string;

  constructor(request: VerifiedSignature) {
    this.#request = request;
    this.#previous = request.signature;
  }

  /** @throws S3Error SignatureDoesNotMatch */
  verify(algorithm: string, hashes: readonly string[], given: string): void {
    const { signingKey, timestamp, scope } = this.#request;
    const text = [algorithm, timestamp, scope.text, this.#previous, ...hashes].join('\n');
    if (!timingSafeEqual(hmac(signingKey, text), Buffer.from(given, 'hex'))) {
      throw new S3Error('SignatureDoesNotMatch', 'The signature of a chunk does not match.');
    }
    this.#previous = given;
  }
}

/**
 * Decodes the content encoding `aws-chunked` (S3 API reference, "Transferring payload in multiple
 * chunks", with and without trailing headers), in constant memory.
 *
 * Bytes are passed on before the signature of their chunk is checked, so whatever is built from
 * them may be published only after `end`. Every failure is an S3Error: InvalidRequest for malformed
 * framing, IncompleteBody for a length that is not the announced one, SignatureDoesNotMatch,
 * MalformedTrailerError.
 */
export class AwsChunkedDecoder extends Transform {
  readonly #options: AwsChunkedOptions;
  readonly #chain: SignatureChain | undefined;
  readonly #trailers = new Map<string, string>();
  #state: 'size' | 'data' | 'data-end' | 'trailer' | 'done' = 'size';
  #line = '';
  #decodedBytes = 0;
  #chunkBytesLeft = 0;
  #chunkSignature = '';
  #chunkHash: Hash | undefined;
  #signsTrailer: boolean;

  constructor(options: AwsChunkedOptions) {
    super();
    this.#options = options;
    this.#chain = options.signature && new SignatureChain(options.signature);
    this.#signsTrailer = options.hasTrailer && options.signature !== undefined;
  }

  /** Names in lower case and values of the trailers; whole after `end`. */
  get trailers(): ReadonlyMap<string, string> {
    return this.#trailers;
  }

  override _transform(input: Buffer, _encoding: string, done: TransformCallback): void {
    try {
      let rest = input;
      while (rest.length > 0) {
        rest = this.#state === 'data' ? this.#takeData(rest) : this.#takeLine(rest);
      }
      done();
    } catch (error) {
      done(toError(error));
    }
  }

  override _flush(done: TransformCallback): void {
    done(this.#state === 'done' ? null : new S3Error('IncompleteBody', 'The body is cut off.'));
  }

  #takeData(input: Buffer): Buffer {
    const data = input.subarray(0, this.#chunkBytesLeft);
    this.#chunkBytesLeft -= data.length;
    this.#chunkHash?.update(data);
    this.push(data);
    if (this.#chunkBytesLeft === 0) {
      this.#verifyChunk(this.#chunkHash?.digest('hex') ?? EMPTY_SHA256);
      this.#state = 'data-end';
    }
    return input.subarray(data.length);
  }

  #takeLine(input: Buffer): Buffer {
    if (this.#state === 'done') throw malformed('something follows its end');
    const newline = input.indexOf(0x0a);
    const length = newline === -1 ? input.length : newline + 1;
    const lengthMax = this.#state === 'trailer' ? TRAILER_LENGTH_MAX : LINE_LENGTH_MAX;
    if (this.#line.length + length > lengthMax) throw malformed('a line is too long');
    this.#line += input.toString('latin1', 0, length);
    if (newline !== -1) {
      const line = this.#line;
      this.#line = '';
      this.#readLine(line);
    }
    return input.subarray(length);
  }

  #readLine(line: string): void {
    if (this.#state === 'size') this.#readSize(line);
    else if (this.#state === 'trailer') this.#readTrailer(line.trim());
    else if (line === '\r\n') this.#state = 'size';
    else throw malformed('a chunk is longer than its size');
  }

  #readSize(line: string): void {
    const pattern =
      this.#chain === undefined
        ? /^([0-9a-fA-F]{1,13})\r\n$/
        : /^([0-9a-fA-F]{1,13});chunk-signature=([0-9a-f]{64})\r\n$/;
    const [, size, signature = ''] = pattern.exec(line) ?? [];
    if (size === undefined) throw malformed('the head of a chunk');
    const bytes = Number.parseInt(size, 16);
    this.#decodedBytes += bytes;
    this.#chunkBytesLeft = bytes;
    this.#chunkSignature = signature;
    const { decodedBytes } = this.#options;
    if (this.#decodedBytes > decodedBytes || (bytes === 0 && this.#decodedBytes < decodedBytes)) {
      throw new S3Error('IncompleteBody', 'The body does not have the announced length.');
    }
    if (bytes === 0) {
      this.#verifyChunk(EMPTY_SHA256);
      this.#state = 'trailer';
    } else {
      this.#chunkHash = this.#chain && createHash('sha256');
      this.#state = 'data';
    }
  }

  #verifyChunk(hash: string): void {
    this.#chain?.verify('AWS4-HMAC-SHA256-PAYLOAD', [EMPTY_SHA256, hash], this.#chunkSignature);
  }

  #readTrailer(line: string): void {
    if (line === '') {
      // AWS's own example has an empty line before the signature of the trailers too.
      if (this.#signsTrailer) return;
      this.#assertTrailersComplete();
      this.#state = 'done';
      return;
    }
    const [, name = '', value = ''] = /^([^:\s]+)\s*:(.*)$/.exec(line) ?? [];
    const key = name.toLowerCase();
    if (key === TRAILER_SIGNATURE && this.#signsTrailer) this.#verifyTrailers(value.trim());
    else if (this.#options.trailerNames.includes(key) && !this.#trailers.has(key)) {
      this.#trailers.set(key, value.trim());
    } else throw new S3Error('MalformedTrailerError');
  }

  #verifyTrailers(given: string): void {
    if (!/^[0-9a-f]{64}$/.test(given)) throw new S3Error('MalformedTrailerError');
    this.#assertTrailersComplete(); // No trailer may follow the signature over them.
    const text = [...this.#trailers].map(([name, value]) => `${name}:${value}\n`).join('');
    const hash = createHash('sha256').update(text, 'latin1').digest('hex');
    this.#chain?.verify('AWS4-HMAC-SHA256-TRAILER', [hash], given);
    this.#signsTrailer = false;
  }

  #assertTrailersComplete(): void {
    if (this.#trailers.size < this.#options.trailerNames.length) {
      throw new S3Error('MalformedTrailerError', 'An announced trailer is missing.');
    }
  }
}
