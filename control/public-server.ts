import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { runInBackground } from '../shared/background.ts';
import { LIMITS } from '../shared/limits.ts';
import { isObjectPath, type ObjectProxy } from './object-proxy.ts';

/** The address that callers know: REST, and the object API below `/dsk-…` (WIRE §1.1). */
export async function startPublicServer(
  { host, port }: { readonly host: string; readonly port: number },
  rest: (request: IncomingMessage, response: ServerResponse) => Promise<void>,
  objects: ObjectProxy,
): Promise<Server> {
  // Uploads to the object API take their time.
  const limits = { requestTimeout: LIMITS.requestMsMax };
  const server = createServer(limits, (request, response) => {
    const isObject = isObjectPath(request.url ?? '');
    runInBackground('request.answer', () =>
      isObject ? objects.handle(request, response) : rest(request, response),
    );
  });
  server.on('checkContinue', (request, response) => {
    const isObject = isObjectPath(request.url ?? '');
    // Whether the body of an object is wanted its host says.
    if (!isObject) response.writeContinue();
    runInBackground('request.answer', () =>
      isObject ? objects.handle(request, response) : rest(request, response),
    );
  });
  server.listen(port, host);
  await once(server, 'listening');
  return server;
}
