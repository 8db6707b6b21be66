import type { Server, ServerResponse } from 'node:http';
import {
  type HttpServerOptions,
  type RenderRefusal,
  type RequestHandler,
  startHttpServer,
} from '../../shared/http/http-server.ts';
import { admitOrigin, allowPreflight, isPreflight } from '../../shared/http/cross-origin.ts';
import { newRequestId } from '../../shared/ids.ts';
import { LIMITS } from '../../shared/limits.ts';
import { renderError, S3Error } from '../objects/protocol/errors.ts';

interface Options extends Omit<HttpServerOptions, 'name' | 'headerBytesMax' | 'render'> {
  /** Origins whose pages may read every answer, besides what disks allow. */
  readonly allowedOrigins: readonly string[];
}

const CODES = { bad_request: 'InvalidRequest', no_capacity: 'SlowDown' } as const;

const render: RenderRefusal = (code, problem, { url = '' }) => ({
  contentType: 'application/xml',
  body: renderError(new S3Error(CODES[code], problem), url, newRequestId()),
});

/** Where clients open WebSockets; no disk has such a name, so it is no object. */
const WEB_SOCKETS = /^\/sandboxes\/[^/?]+\/connection(?:\?|$)/u;

/** Answers a request to the address of a WebSocket that asks for none. */
function refusePlain(response: ServerResponse): void {
  response.writeHead(400, { 'content-type': 'text/plain; charset=utf-8' });
  response.end('this address upgrades to a WebSocket, which the request does not ask for\n');
}

/** The host's public address: the object API, and the WebSockets of process sessions. */
export function startPublicServer(
  { allowedOrigins, ...options }: Options,
  handle: RequestHandler,
): Promise<Server> {
  const { headerBytesMax } = LIMITS;
  const server = { ...options, name: 'public', headerBytesMax, hasUpgrades: true, render } as const;
  return startHttpServer(server, (request, response) => {
    const isAdmitted = admitOrigin(request, response, allowedOrigins);
    if (isAdmitted && isPreflight(request)) return allowPreflight(request, response);
    if (WEB_SOCKETS.test(request.url ?? '')) return refusePlain(response);
    return handle(request, response);
  });
}
