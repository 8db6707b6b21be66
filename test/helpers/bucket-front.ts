import { once } from 'node:events';
import {
  type ClientRequest,
  createServer,
  request,
  type IncomingMessage,
  type Server,
  type ServerResponse,
} from 'node:http';
import { createServer as createTlsServer, request as requestTls } from 'node:https';
import { MiB } from '../../shared/units.ts';

const SLOW_DOWN =
  '<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Please slow down.</Message></Error>';

const DENIED =
  '<?xml version="1.0"?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>';
/** How long a slow server thinks. */
const SLOW_MS = 300;
/** Bytes that arrive of a request that is cut. */
const CUT_AFTER_BYTES = 1_000;
/** Bytes of an answer that pass before the rest is held. */
const HELD_AFTER_BYTES = 4 * MiB;

/**
 * The fate of a request: `deny` answers 403 in its place; `lose` has the server answer, and nobody
 * hears it; `cut` breaks the connection to the server in the midst of the request; `slow` takes its
 * time; a promise holds it up.
 */
type Fate = 'pass' | 'deny' | 'lose' | 'cut' | 'slow';

interface Tls {
  readonly cert: Buffer;
  readonly key: Buffer;
}

function cutShort(asked: IncomingMessage, sent: ClientRequest): void {
  let bytes = 0;
  asked.on('data', (chunk: Buffer) => {
    const part = chunk.subarray(0, CUT_AFTER_BYTES - bytes);
    bytes += part.length;
    sent.write(part, () => {
      if (bytes === CUT_AFTER_BYTES) sent.destroy();
    });
  });
  asked.on('end', () => sent.destroy());
}

/** Passes on the beginning of an answer, and the rest once the promise is settled. */
function passInTwo(got: IncomingMessage, answer: ServerResponse, held: Promise<void>): void {
  let bytes = 0;
  const passFirst = (chunk: Buffer): void => {
    answer.write(chunk);
    bytes += chunk.length;
    if (bytes < HELD_AFTER_BYTES) return;
    got.off('data', passFirst).pause();
    held.then(
      () => got.pipe(answer),
      () => answer.destroy(),
    );
  };
  got.on('data', passFirst);
}

/** Stands before a bucket, so that a test can take the bucket away. */
export class BucketFront implements AsyncDisposable {
  readonly #target: URL;
  readonly #tls: Tls | undefined;
  readonly #server: Server;
  /**
   * `away` breaks every connection, `unlisted` those of listings; `busy` answers every fourth
   * request with 503 SlowDown.
   */
  mode: 'open' | 'away' | 'unlisted' | 'busy' = 'open';
  /** Decides about each request, in the mode `open`. */
  rule: (asked: { method: string; url: string }) => Fate | Promise<Fate> = () => 'pass';
  /** Holds the rest of large answers. */
  held: Promise<void> | undefined;
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
    const { method = '', url = '' } = asked;
    Promise.resolve(this.rule({ method, url })).then(
      (fate) => this.#forward(asked, answer, fate),
      () => answer.destroy(),
    );
  }

  #forward(asked: IncomingMessage, answer: ServerResponse, fate: Fate): void {
    if (fate === 'deny') {
      asked.resume();
      answer.writeHead(403, { 'content-type': 'application/xml' }).end(DENIED);
      return;
    }
    const { hostname, port } = this.#target;
    const { method, url, headers } = asked;
    // The host stays: the signature covers it.
    const options = { hostname, port, method, path: url, headers };
    const pass = (got: IncomingMessage): void => {
      if (fate === 'lose') {
        got.resume().once('end', () => answer.destroy());
        return;
      }
      answer.writeHead(got.statusCode ?? 500, got.headers);
      const isLarge = method === 'GET' && Number(got.headers['content-length']) > HELD_AFTER_BYTES;
      if (this.held !== undefined && isLarge) {
        passInTwo(got, answer, this.held);
      } else got.pipe(answer);
      got.on('error', () => answer.destroy());
    };
    const sent =
      this.#tls === undefined
        ? request(options, pass)
        : requestTls({ ...options, ca: this.#tls.cert }, pass);
    sent.on('error', () => answer.destroy());
    asked.on('error', () => sent.destroy());
    if (fate === 'slow') setTimeout(() => asked.pipe(sent), SLOW_MS);
    else if (fate === 'cut') cutShort(asked, sent);
    else asked.pipe(sent);
  }
}
