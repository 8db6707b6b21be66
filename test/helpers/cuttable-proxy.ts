import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';

const loopback = '127.0.0.1';

/** Passes TCP connections on to a port of this computer, until it cuts them. */
export class CuttableProxy implements AsyncDisposable {
  readonly port: number;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  #isCut = false;
  /** How many connections were broken. */
  cuts = 0;

  private constructor(server: Server, target: number) {
    this.#server = server;
    this.port = (server.address() as AddressInfo).port;
    server.on('connection', (client) => {
      if (this.#isCut) {
        client.resetAndDestroy();
        return;
      }
      const upstream = connect(target, loopback);
      for (const [socket, other] of [
        [client, upstream],
        [upstream, client],
      ] as const) {
        this.#sockets.add(socket);
        socket.on('error', () => other.destroy());
        socket.on('close', () => {
          this.#sockets.delete(socket);
          other.destroy();
        });
        socket.pipe(other);
      }
    });
  }

  static async to(target: number): Promise<CuttableProxy> {
    const server = createServer();
    server.listen(0, loopback);
    await once(server, 'listening');
    return new CuttableProxy(server, target);
  }

  /** Breaks all connections. New ones are refused, too, until `mend`. */
  cut(): void {
    this.#isCut = true;
    for (const socket of this.#sockets) {
      this.cuts += 1;
      socket.resetAndDestroy();
    }
  }

  mend(): void {
    this.#isCut = false;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.cut();
    this.#server.close();
    await once(this.#server, 'close');
  }
}
