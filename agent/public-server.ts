import { once } from 'node:events';
import { createServer, type RequestListener, type Server } from 'node:http';

/** The host's public address: the object API today, sandbox ports later. */
export async function startPublicServer(
  { host, port }: { readonly host: string; readonly port: number },
  handle: RequestListener,
): Promise<Server> {
  // An upload may take any time; one that stands still is ended by the exchange.
  const server = createServer({ requestTimeout: 0 }, handle);
  // Whether a client that asks first may send its body is known once it was let in.
  server.on('checkContinue', handle);
  server.listen(port, host);
  await once(server, 'listening');
  return server;
}
