import type { IncomingMessage } from 'node:http';
import type { Readable } from 'node:stream';
import { createBrotliDecompress, createUnzip } from 'node:zlib';
import { AppError, toError } from '../../shared/errors.ts';
import { LIMITS } from '../../shared/limits.ts';

const tooLarge = (): AppError =>
  new AppError(
    'body_too_large',
    `the request body is too large: it has at most ${LIMITS.requestBodyBytesMax} bytes`,
  );

/** The body without its content encoding. @throws AppError `bad_request` */
function decoded(request: IncomingMessage): Readable {
  const encoding = request.headers['content-encoding'] ?? 'identity';
  if (encoding === 'identity') return request;
  if (!['gzip', 'deflate', 'br'].includes(encoding)) {
    throw new AppError('bad_request', 'Content-Encoding may be gzip, deflate or br');
  }
  const plain = encoding === 'br' ? createBrotliDecompress() : createUnzip();
  // A pipe passes no errors on, so the reader of a connection that breaks would wait for ever.
  request.once('error', (error) => plain.destroy(error));
  return request.pipe(plain);
}

async function readBounded(body: Readable): Promise<string> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  // Left early, the loop would destroy the connection, and the answer with it.
  for await (const chunk of body.iterator({ destroyOnReturn: false })) {
    const piece = chunk as Buffer;
    bytes += piece.length;
    if (bytes > LIMITS.requestBodyBytesMax) throw tooLarge();
    chunks.push(piece);
  }
  return new TextDecoder().decode(Buffer.concat(chunks)); // Without a byte order mark.
}

/**
 * Reads the body of a request as text. Bounded are the bytes as sent and as decoded.
 * @throws AppError `body_too_large`, `bad_request` when it cannot be decoded or ends early
 */
export async function readBodyText(request: IncomingMessage): Promise<string> {
  if (Number(request.headers['content-length'] ?? 0) > LIMITS.requestBodyBytesMax) throw tooLarge();
  const body = decoded(request);
  try {
    return await readBounded(body);
  } catch (error) {
    if (body !== request) request.unpipe();
    request.resume(); // Drops the rest, so that the connection's next request can be read.
    if (error instanceof AppError) throw error;
    const { message } = toError(error);
    throw new AppError('bad_request', `the request body cannot be decoded: ${message}`);
  }
}
