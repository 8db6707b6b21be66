import type { IncomingMessage } from 'node:http';
import { AppError } from '../../../shared/errors.ts';
import { parseCallerJson } from '../../../shared/json.ts';
import { HTTP_LIMITS } from '../../http/limits.ts';
import type { HeldBody } from '../../http/body-shares.ts';
import { readBody } from '../../http/read-body.ts';

/** A message of JSON-RPC, not looked at yet beyond what is needed to tell it apart. */
export interface McpMessage {
  readonly method?: unknown;
  readonly id?: unknown;
  readonly params?: unknown;
}

/**
 * Reads the one message that a request has. Batches, which the protocol had in one version only,
 * are refused: each of their calls would go past the count of calls at the same time.
 * @throws AppError `bad_request`, `body_too_large`, `rate_limited`, `unavailable`
 */
export async function readMessage(request: IncomingMessage, held: HeldBody): Promise<McpMessage> {
  if (!/^application\/json\s*(?:;|$)/iu.test(request.headers['content-type'] ?? '')) {
    throw new AppError(
      'bad_request',
      'send one message as JSON, with Content-Type: application/json',
    );
  }
  const bytesMax = HTTP_LIMITS.requestBodyBytesMax;
  const text = await readBody(request, { bytesMax, mayBeCompressed: false, held });
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
