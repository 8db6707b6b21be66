import { once } from 'node:events';
import { createServer, type RequestListener, type Server } from 'node:http';
import { LIMITS } from '../shared/limits.ts';
import { isObjectPath, type ObjectProxy } from './object-proxy.ts';

/** The address that callers know: REST, and the object API below `/dsk-…` (WIRE §1.1). */
export async function startPublicServer(
  { host, port }: { readonly host: string; readonly port: number },
  rest: RequestListener,
  objects: ObjectProxy,
): Promise<Server> {
  // Uploads to the object API take their time.
  const limits = { requestTimeout: LIMITS.requestMsMax };
  const server = createServer(limits, (request, response) => {
    if (isObjectPath(request.url ?? '')) void objects.handle(request, response);
    else rest(request, response);
  });
  server.listen(port, host);
  await once(server, 'listening');
  return server;
}
