import { once } from 'node:events';
import { createServer, type RequestListener, type Server } from 'node:http';
import { newRequestId } from '../shared/ids.ts';
import type { Logger } from '../shared/log.ts';
import { serveStrictly, STRICT_PARSER } from '../shared/strict-http.ts';
import { renderError, S3Error } from './gateway/errors.ts';

/** The host's public address: the object API today, sandbox ports later. */
export async function startPublicServer(
  { host, port }: { readonly host: string; readonly port: number },
  log: Logger,
  handle: RequestListener,
): Promise<Server> {
  // An upload may take any time; one that stands still is ended by the exchange.
  const server = createServer({ ...STRICT_PARSER, requestTimeout: 0 });
  serveStrictly(server, {
    // Whether a client that asks first may send its body is known once it was let in.
    handle,
    render: ({ url = '' }, problem) => ({
      contentType: 'application/xml',
      body: renderError(new S3Error('InvalidRequest', problem), url, newRequestId()),
    }),
    onRefused: (_request, problem) => log.info({ problem }, 'request:refused'),
  });
  server.listen(port, host);
  await once(server, 'listening');
  return server;
}
