import { once } from 'node:events';
import { createServer, request, type IncomingMessage, type ServerResponse } from 'node:http';

const SLOW_DOWN =
  '<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Please slow down.</Message></Error>';

/** Stands before a bucket, so that a test can take the bucket away. */
export class BucketFront implements AsyncDisposable {
  readonly #target: URL;
  readonly #server = createServer((asked, answer) => this.#serve(asked, answer));
  /** `away` breaks every connection; `busy` answers every fourth request with 503 SlowDown. */
  mode: 'open' | 'away' | 'busy' = 'open';
  /** Requests that were let through or answered. */
  requests = 0;

  private constructor(target: string) {
    this.#target = new URL(target);
  }

  static async before(target: string): Promise<BucketFront> {
    const front = new BucketFront(target);
    front.#server.listen(0, '127.0.0.1');
    await once(front.#server, 'listening');
    return front;
  }

  get url(): string {
    const address = this.#server.address();
    if (address === null || typeof address === 'string') throw new Error('the front is closed');
    return `http://127.0.0.1:${address.port}`;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections();
    this.#server.close();
    await once(this.#server, 'close');
  }

  #serve(asked: IncomingMessage, answer: ServerResponse): void {
    this.requests += 1;
    if (this.mode === 'away') {
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
    const sent = request({ hostname, port, method, path: url, headers }, (got) => {
      answer.writeHead(got.statusCode ?? 500, got.headers);
      got.pipe(answer);
      got.on('error', () => answer.destroy());
    });
    sent.on('error', () => answer.destroy());
    asked.on('error', () => sent.destroy());
    asked.pipe(sent);
  }
}
