import type { IncomingMessage } from 'node:http';
import { finished, type Readable, type Transform } from 'node:stream';
import { createBrotliDecompress, createUnzip } from 'node:zlib';
import { AppError, toError } from '../../shared/errors.ts';
import type { HeldBody } from './body-shares.ts';

interface BodyBounds {
  /** Bounds the body as it comes, and as it is once it is decompressed. */
  readonly bytesMax: number;
  /** Whether `Content-Encoding` may be anything but `identity`. */
  readonly mayBeCompressed: boolean;
  /** Where its bytes are counted. */
  readonly held: HeldBody;
}

const utf8 = new TextDecoder(); // Drops a byte order mark.

const tooLarge = (bytesMax: number): AppError =>
  new AppError('body_too_large', `the request body is too large: it has at most ${bytesMax} bytes`);

const decompressors: Readonly<Record<string, () => Transform>> = {
  gzip: createUnzip,
  deflate: createUnzip,
  br: createBrotliDecompress,
};

/** Ends with the request, however that ends; leaving it early does not end the request. */
function piecesOf(
  request: IncomingMessage,
  { bytesMax, mayBeCompressed }: BodyBounds,
): AsyncIterable<unknown> {
  const { 'content-encoding': coding = 'identity' } = request.headers;
  // Left early, the plain iterator would destroy the connection, and the answer with it.
  if (coding === 'identity') return request.iterator({ destroyOnReturn: false });
  const begin = Object.hasOwn(decompressors, coding) ? decompressors[coding] : undefined;
  if (!mayBeCompressed || begin === undefined) {
    throw new AppError('bad_request', `the request body cannot have Content-Encoding ${coding}`);
  }
  return decompress(request, begin(), bytesMax);
}

function decompress(request: IncomingMessage, decompressor: Transform, bytesMax: number): Readable {
  let bytes = 0;
  // Compressed bytes that nothing comes of, such as empty blocks, would else never end.
  request.on('data', ({ length }: Buffer) => {
    bytes += length;
    if (bytes > bytesMax) decompressor.destroy(tooLarge(bytesMax));
  });
  // A pipe does not end when its source breaks off.
  finished(request, (error) => {
    if (error) decompressor.destroy(error);
  });
  return request.pipe(decompressor);
}

/** Grows to twice its size, so that a body costs no more memory for coming in small pieces. */
function withRoomFor(bytes: number, store: Buffer, bytesMax: number): Buffer {
  if (bytes <= store.length) return store;
  const larger = Buffer.allocUnsafe(Math.max(bytes, Math.min(2 * store.length, bytesMax)));
  store.copy(larger);
  return larger;
}

/**
 * Reads the body of a request as text. When it throws, a part of the body may be left: the request
 * is not destroyed, so that it can be answered.
 * @throws AppError `bad_request`, `body_too_large`, `rate_limited`, `unavailable`
 */
export async function readBody(request: IncomingMessage, bounds: BodyBounds): Promise<string> {
  const { bytesMax, held } = bounds;
  if (Number(request.headers['content-length'] ?? 0) > bytesMax) throw tooLarge(bytesMax);
  let store: Buffer = Buffer.alloc(0);
  let bytes = 0;
  try {
    for await (const piece of piecesOf(request, bounds)) {
      const grown = bytes + (piece as Buffer).length;
      if (grown > bytesMax) throw tooLarge(bytesMax);
      held.growTo(grown);
      store = withRoomFor(grown, store, bytesMax);
      (piece as Buffer).copy(store, bytes);
      bytes = grown;
    }
  } catch (error) {
    if (error instanceof AppError) throw error;
    const message = `the request body cannot be decoded: ${toError(error).message}`;
    throw new AppError('bad_request', message, { cause: error });
  }
  return utf8.decode(store.subarray(0, bytes));
}
