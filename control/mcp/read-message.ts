import type { IncomingMessage } from 'node:http';
import { AppError } from '../../shared/errors.ts';
import { parseCallerJson } from '../../shared/json.ts';
import { LIMITS } from '../../shared/limits.ts';

/** A message of JSON-RPC, not looked at yet beyond what is needed to tell it apart. */
export interface McpMessage {
  readonly method?: unknown;
  readonly id?: unknown;
  readonly params?: unknown;
}

const tooLarge = (): AppError =>
  new AppError('body_too_large', `a message has at most ${LIMITS.requestBodyBytesMax} bytes`);

async function readText(request: IncomingMessage): Promise<string> {
  if (Number(request.headers['content-length'] ?? 0) > LIMITS.requestBodyBytesMax) throw tooLarge();
  const chunks: Buffer[] = [];
  let bytes = 0;
  // Left early, the loop would destroy the connection, and the answer with it.
  for await (const chunk of request.iterator({ destroyOnReturn: false })) {
    const piece = chunk as Buffer;
    bytes += piece.length;
    if (bytes > LIMITS.requestBodyBytesMax) throw tooLarge();
    chunks.push(piece);
  }
  return Buffer.concat(chunks).toString('utf8');
}

/**
 * Reads the one message that a request has. Batches, which the protocol had in one version only, are
 * refused: each of their calls would go past the count of calls at the same time.
 * @throws AppError `bad_request`, `body_too_large`
 */
export async function readMessage(request: IncomingMessage): Promise<McpMessage> {
  if (!/^application\/json\s*(?:;|$)/iu.test(request.headers['content-type'] ?? '')) {
    throw new AppError(
      'bad_request',
      'send one message as JSON, with Content-Type: application/json',
    );
  }
  const text = await readText(request);
  let message: unknown;
  try {
    message = parseCallerJson(text);
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
    throw new AppError('bad_request', `the message is not valid JSON: ${error.message}`);
  }
  if (typeof message === 'object' && message !== null && !Array.isArray(message)) return message;
  throw new AppError('bad_request', 'send one message of JSON-RPC 2.0 at a time, an object');
}
