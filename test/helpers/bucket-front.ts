import { once } from 'node:events';
import {
  createServer,
  request,
  type IncomingMessage,
  type Server,
  type ServerResponse,
} from 'node:http';
import { createServer as createTlsServer, request as requestTls } from 'node:https';

const SLOW_DOWN =
  '<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Please slow down.</Message></Error>';

interface Tls {
  readonly cert: Buffer;
  readonly key: Buffer;
}

/** Stands before a bucket, so that a test can take the bucket away. */
export class BucketFront implements AsyncDisposable {
  readonly #target: URL;
  readonly #tls: Tls | undefined;
  readonly #server: Server;
  /**
   * `away` breaks every connection, `unlisted` those of listings; `busy` answers every fourth request
   * with 503 SlowDown.
   */
  mode: 'open' | 'away' | 'unlisted' | 'busy' = 'open';
  /** Requests that were let through or answered. */
  requests = 0;

  private constructor(target: string, tls: Tls | undefined) {
    this.#target = new URL(target);
    this.#tls = tls;
    const serve = (asked: IncomingMessage, answer: ServerResponse): void =>
      this.#serve(asked, answer);
    this.#server = tls === undefined ? createServer(serve) : createTlsServer(tls, serve);
  }

  /** @param tls of the server; the front has the same certificate */
  static async before(target: string, tls?: Tls): Promise<BucketFront> {
    const front = new BucketFront(target, tls);
    front.#server.listen(0, '127.0.0.1');
    await once(front.#server, 'listening');
    return front;
  }

  get url(): string {
    const address = this.#server.address();
    if (address === null || typeof address === 'string') throw new Error('the front is closed');
    return `${this.#target.protocol}//127.0.0.1:${address.port}`;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections();
    this.#server.close();
    await once(this.#server, 'close');
  }

  #serve(asked: IncomingMessage, answer: ServerResponse): void {
    this.requests += 1;
    const isListing = /[?&](?:list-type|comp=list)/u.test(asked.url ?? '');
    if (this.mode === 'away' || (this.mode === 'unlisted' && isListing)) {
      asked.socket.destroy();
      return;
    }
    if (this.mode === 'busy' && this.requests % 4 === 0) {
      asked.resume();
      answer.writeHead(503, { 'content-type': 'application/xml' }).end(SLOW_DOWN);
      return;
    }
    const { hostname, port } = this.#target;
    const { method, url, headers } = asked;
    // The host stays: the signature covers it.
    const options = { hostname, port, method, path: url, headers };
    const pass = (got: IncomingMessage): void => {
      answer.writeHead(got.statusCode ?? 500, got.headers);
      got.pipe(answer);
      got.on('error', () => answer.destroy());
    };
    const sent =
      this.#tls === undefined
        ? request(options, pass)
        : requestTls({ ...options, ca: this.#tls.cert }, pass);
    sent.on('error', () => answer.destroy());
    asked.on('error', () => sent.destroy());
    asked.pipe(sent);
  }
}
