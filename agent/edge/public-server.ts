import type { Server, ServerResponse } from 'node:http';
import {
  type HttpServerOptions,
  type RequestHandler,
  startHttpServer,
} from '../../shared/http/http-server.ts';
import { admitOrigin, allowPreflight, isPreflight } from '../../shared/http/cross-origin.ts';
import { renderObjectRefusal } from '../../shared/http/object-error.ts';
import { LIMITS } from '../../shared/limits.ts';

interface Options extends Omit<HttpServerOptions, 'name' | 'headerBytesMax' | 'render'> {
  /** Origins whose pages may read every answer, besides what disks allow. */
  readonly allowedOrigins: readonly string[];
}

/** Where clients open WebSockets; no disk has such a name, so it is no object. */
const WEB_SOCKETS = /^\/sandboxes\/[^/?]+\/connection(?:\?|$)/u;

/** Answers a request to the address of a WebSocket that asks for none. */
function refusePlain(response: ServerResponse): void {
  response.writeHead(400, { 'content-type': 'text/plain; charset=utf-8' });
  response.end('this address upgrades to a WebSocket, which the request does not ask for\n');
}

/** The host's public address: the object API, and the WebSockets of process connections. */
export function startPublicServer(
  { allowedOrigins, ...options }: Options,
  handle: RequestHandler,
): Promise<Server> {
  const { headerBytesMax } = LIMITS;
  const render = renderObjectRefusal;
  const server = { ...options, name: 'public', headerBytesMax, hasUpgrades: true, render } as const;
  return startHttpServer(server, (request, response) => {
    const isAdmitted = admitOrigin(request, response, allowedOrigins);
    if (isAdmitted && isPreflight(request)) return allowPreflight(request, response);
    if (WEB_SOCKETS.test(request.url ?? '')) return refusePlain(response);
    return handle(request, response);
  });
}
