import type { ServerResponse } from 'node:http';
import { toError } from '../../shared/errors.ts';
import { dataErrorHeaders } from '../../shared/links/data-protocol.ts';
import { toAppError } from './to-app-error.ts';

/**
 * Answers a request of another part of the cluster with its failure, which a header tells. An
 * answer that has begun is broken off, because one that cannot be finished must not look complete.
 * @returns fields for the log
 */
export function answerFailure(response: ServerResponse, thrown: unknown): Record<string, unknown> {
  if (response.headersSent) {
    response.destroy();
    return { reason: toError(thrown).message };
  }
  const error = toAppError(thrown);
  response.writeHead(409, dataErrorHeaders(error)).end();
  const isDefect = error.code === 'internal_server_error';
  return { code: error.code, ...(isDefect ? { err: toError(thrown) } : {}) };
}
