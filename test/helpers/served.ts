import { once } from 'node:events';
import { createServer, type RequestListener, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { ExecutionContext } from 'ava';

/** Plays a server of HTTP until the test ends. @returns the server and its URL */
export async function serve(
  t: ExecutionContext,
  listener: RequestListener,
): Promise<[Server, string]> {
  // On a busy machine, an idle connection could otherwise be closed at the moment of its reuse.
  const server = createServer({ keepAliveTimeout: 0 }, listener);
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.teardown(async () => {
    server.closeAllConnections();
    server.close();
    await once(server, 'close');
  });
  return [server, `http://127.0.0.1:${(server.address() as AddressInfo).port}`];
}
