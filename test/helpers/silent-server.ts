import { once } from 'node:events';
import { type AddressInfo, createServer, type Socket } from 'node:net';

/** A server that takes connections and says nothing. */
export interface SilentServer {
  /** Its address and port. */
  readonly name: string;
  /** Ends it and its connections. */
  end(): void;
}

/** Lets builds of images hang until the server is ended. */
export async function listenSilently(): Promise<SilentServer> {
  const sockets: Socket[] = [];
  const server = createServer((socket) => {
    socket.on('error', () => undefined);
    sockets.push(socket);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const end = (): void => {
    server.close();
    for (const socket of sockets) socket.destroy();
  };
  return { name: `127.0.0.1:${(server.address() as AddressInfo).port}`, end };
}
