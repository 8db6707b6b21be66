import type { Server } from 'node:http';
import type { AddressInfo } from 'node:net';

/**
 * This node's own API on a port of the loopback address, opened when it is first asked for. What
 * speaks to it is checked like any other caller: by its key, and by every limit of its account.
 */
export class OwnApi {
  readonly #open: () => Promise<Server>;
  #server: Promise<Server> | undefined;

  /** @param open serves the API on a free port of the loopback address */
  constructor(open: () => Promise<Server>) {
    this.#open = open;
  }

  async url(): Promise<string> {
    this.#server ??= this.#open().catch((error: unknown) => {
      this.#server = undefined; // The next caller tries again.
      throw error;
    });
    const { port } = (await this.#server).address() as AddressInfo;
    return `http://127.0.0.1:${port}`;
  }

  async close(): Promise<void> {
    const server = await this.#server?.catch(() => undefined);
    server?.close();
    server?.closeAllConnections();
  }
}
