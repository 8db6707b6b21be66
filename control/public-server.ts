import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { runInBackground } from '../shared/background.ts';
import { LIMITS } from '../shared/limits.ts';
import type { Logger } from '../shared/log.ts';
import { type Refusal, serveStrictly, STRICT_PARSER } from '../shared/strict-http.ts';
import { isObjectPath, type ObjectProxy, renderObjectError } from './object-proxy.ts';

interface PublicServerOptions {
  readonly host: string;
  readonly port: number;
  readonly log: Logger;
}

function renderRefusal({ url = '' }: IncomingMessage, problem: string): Refusal {
  if (isObjectPath(url)) {
    return { contentType: 'application/xml', body: renderObjectError('InvalidRequest', problem) };
  }
  const body = JSON.stringify({ success: false, error: problem, code: 'bad_request' });
  return { contentType: 'application/json; charset=utf-8', body };
}

/** The address that callers know: REST, and the object API below `/dsk-…` (WIRE §1.1). */
export async function startPublicServer(
  { host, port, log }: PublicServerOptions,
  rest: (request: IncomingMessage, response: ServerResponse) => Promise<void>,
  objects: ObjectProxy,
): Promise<Server> {
  // Uploads to the object API take their time.
  const server = createServer({ ...STRICT_PARSER, requestTimeout: LIMITS.requestMsMax });
  serveStrictly(server, {
    handle: (request, response, awaitsContinue) => {
      const isObject = isObjectPath(request.url ?? '');
      // Whether the body of an object is wanted its host says.
      if (awaitsContinue && !isObject) response.writeContinue();
      runInBackground('request.answer', () =>
        isObject ? objects.handle(request, response) : rest(request, response),
      );
    },
    render: renderRefusal,
    onRefused: (_request, problem) => log.info({ problem }, 'request:refused'),
  });
  server.listen(port, host);
  await once(server, 'listening');
  return server;
}
