import { hash, timingSafeEqual } from 'node:crypto';
import type { IncomingMessage, Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { FirstReader } from '../../http/public-server.ts';
import { speakFor } from '../../../shared/http/client-address.ts';
import { randomSecret } from '../../../shared/secrets.ts';

/** The secret of the node's own requests, and the address of the client that each is for. */
const CLIENT_HEADER = 'x-berth-client';

/** Serves the API; `first` sees every request before anything else does. */
export type ServeApi = (first: FirstReader) => Promise<Server>;

/**
 * This node's own API on a port of the loopback address, opened when it is first asked for. What
 * speaks to it is checked like any other caller: by its key, and by every limit of its account.
 */
export class OwnApi {
  readonly #serve: ServeApi;
  readonly #secret = randomSecret();
  #server: Promise<Server> | undefined;

  /** @param serve serves the API on a free port of the loopback address */
  constructor(serve: ServeApi) {
    this.#serve = serve;
  }

  /** Headers of a request for a client, whose address counts instead of this node's. */
  headersFor(address: string): Readonly<Record<string, string>> {
    return { [CLIENT_HEADER]: `${this.#secret} ${address}` };
  }

  /**
   * Notes whom a request is for. The secret goes no further: objects are forwarded with all
   * headers.
   */
  authorize(request: IncomingMessage): void {
    const { headers, rawHeaders } = request;
    const said = headers[CLIENT_HEADER];
    if (typeof said !== 'string') return;
    const [secret = '', address = ''] = said.split(' ');
    if (isSame(secret, this.#secret)) speakFor(request, address);
    delete headers[CLIENT_HEADER];
    const index = rawHeaders.findIndex((name) => name.toLowerCase() === CLIENT_HEADER);
    rawHeaders.splice(index, 2);
  }

  async url(): Promise<string> {
    this.#server ??= this.#serve(this).catch((error: unknown) => {
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

/** In constant time. */
const isSame = (a: string, b: string): boolean =>
  timingSafeEqual(hash('sha256', a, 'buffer'), hash('sha256', b, 'buffer'));
