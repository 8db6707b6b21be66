import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import { awaitsContinue } from '../../shared/http/continue-requests.ts';
import {
  type HttpServerOptions,
  refuse,
  type RenderRefusal,
  startHttpServer,
} from '../../shared/http/http-server.ts';
import { renderObjectRefusal } from '../../shared/http/object-error.ts';
import { LIMITS } from '../../shared/limits.ts';
import { isObjectPath, type ObjectProxy } from '../region/object-proxy.ts';

type Options = Omit<HttpServerOptions, 'headerBytesMax' | 'render'>;

const render: RenderRefusal = (code, problem, { url = '' }) => {
  if (isObjectPath(url)) return renderObjectRefusal(code, problem);
  const body = JSON.stringify({ success: false, error: problem, code });
  return { contentType: 'application/json; charset=utf-8', body };
};

/** Sees every request before anything else, and may say whose it is. */
export interface FirstReader {
  authorize(request: IncomingMessage): Promise<void> | void;
}

/** Serves the address that callers know: REST, and the object API below `/dsk-…`. */
export function startPublicServer(
  options: Options,
  rest: (request: IncomingMessage, response: ServerResponse) => Promise<void>,
  objects: ObjectProxy,
  first: FirstReader,
): Promise<Server> {
  const { headerBytesMax } = LIMITS;
  const server = { ...options, headerBytesMax, render };
  return startHttpServer(server, async (request, response) => {
    try {
      await first.authorize(request);
    } catch {
      return refuse(request, response, render, 'the directory cannot be reached; try again');
    }
    // The host of the object decides whether it wants the body.
    if (isObjectPath(request.url ?? '')) return objects.handle(request, response);
    if (awaitsContinue(request)) response.writeContinue();
    return rest(request, response);
  });
}
