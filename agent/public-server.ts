import { once } from 'node:events';
import { createServer, type Server } from 'node:http';

const NOT_BUILT = `<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>NotImplemented</Code><Message>The object API and sandbox ports are not built yet.</Message></Error>
`;

/**
 * The host's public address, where the object API and sandbox ports will answer. Until they are
 * built it says so in the form that clients of the object API read (WIRE §4.4).
 */
export async function startPublicServer(host: string, port: number): Promise<Server> {
  const server = createServer((request, response) => {
    request.resume();
    response.writeHead(501, { 'content-type': 'application/xml' });
    response.end(request.method === 'HEAD' ? undefined : NOT_BUILT);
  });
  server.listen(port, host);
  await once(server, 'listening');
  return server;
}
