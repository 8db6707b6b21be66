import type { ClientRequest, IncomingMessage } from 'node:http';
import { Readable } from 'node:stream';
import { BerthError, type Fetch, type FetchAnswer, type FetchInit } from '@berth/sdk';

// An import would read everything that the module exports, and so load the runtime's `fetch` after
// all.
const { request: requestHttp } = process.getBuiltinModule('node:http');

const REDIRECTS: ReadonlySet<number> = new Set([301, 302, 303, 307, 308]);
/** Statuses of answers without content, besides those to HEAD. */
const EMPTY: ReadonlySet<number> = new Set([204, 304]);
/**
 * Shorter content is read at once, so that nobody has to, and its connection serves the next
 * request.
 */
const SHORT_BYTES = 64 * 1024;

async function collect(message: IncomingMessage): Promise<Buffer> {
  const pieces: Uint8Array[] = [];
  for await (const piece of message) pieces.push(piece as Uint8Array);
  // Its connection is free for reuse only after this turn of the event loop.
  await new Promise((resolve) => {
    setImmediate(resolve);
  });
  return Buffer.concat(pieces);
}

/** An answer, whose content has arrived already or still arrives. */
class Answer implements FetchAnswer {
  readonly status: number;
  readonly headers: FetchAnswer['headers'];
  readonly #message: IncomingMessage;
  readonly #content: Buffer | undefined;

  constructor(message: IncomingMessage, content: Buffer | undefined) {
    this.status = message.statusCode ?? 0;
    this.#message = message;
    this.#content = content;
    this.headers = {
      get(name) {
        const value = message.headers[name.toLowerCase()];
        return (Array.isArray(value) ? value.join(', ') : value) ?? null;
      },
    };
  }

  get ok(): boolean {
    return this.status >= 200 && this.status < 300;
  }

  get body(): FetchAnswer['body'] {
    const content = this.#content;
    if (content === undefined) return Readable.toWeb(this.#message) as ReadableStream<Uint8Array>;
    return ReadableStream.from(content.length === 0 ? [] : [content]);
  }

  async text(): Promise<string> {
    return (this.#content ?? (await collect(this.#message))).toString();
  }
}

async function sendBody(outgoing: ClientRequest, body: FetchInit['body']): Promise<void> {
  if (body === undefined) outgoing.end();
  else if (typeof body === 'string' || body instanceof Uint8Array) {
    outgoing.setHeader('content-length', Buffer.byteLength(body)).end(body);
  } else if (body instanceof ReadableStream) {
    const { pipeline } = await import('node:stream/promises');
    await pipeline(Readable.fromWeb(body), outgoing);
  } else throw new TypeError('this content cannot be sent');
}

function send(url: string, init: FetchInit): Promise<IncomingMessage> {
  const { method, headers, body, signal } = init;
  // TLS takes its time to load.
  const request = url.startsWith('https:')
    ? process.getBuiltinModule('node:https').request
    : requestHttp;
  return new Promise((resolve, reject) => {
    const outgoing = request(url, { method, headers, signal });
    outgoing.once('response', resolve);
    // After the answer, too: it may come before all of the body is sent.
    outgoing.on('error', reject);
    sendBody(outgoing, body).catch(reject);
  });
}

/** A stream is read once: some of it has gone to the URL that redirects. */
function redirected(url: string, location: string): BerthError {
  const { origin } = new URL(url);
  const target = new URL(location, url).origin;
  return new BerthError('redirected', `${origin} redirects the upload to ${target}`);
}

/**
 * Makes a request by `node:http`, with connections that are kept. The runtime's own `fetch` takes
 * about 20 ms to load, which is most of a short command, and more processor time for each request.
 * @throws BerthError `redirected` when the content of an upload cannot be sent on
 */
export const nodeFetch: Fetch = async (url, init) => {
  const message = await send(url, init);
  const { statusCode = 0, headers } = message;
  if (REDIRECTS.has(statusCode) && headers.location !== undefined) {
    if (init.body instanceof ReadableStream) {
      message.destroy();
      throw redirected(url, headers.location);
    }
    message.resume();
    return fetch(url, init); // `fetch` knows which headers may be sent on, and where to.
  }
  const length = Number(headers['content-length'] ?? Infinity);
  const isEmpty = init.method === 'HEAD' || EMPTY.has(statusCode);
  const isShort = isEmpty || length <= SHORT_BYTES;
  return new Answer(message, isShort ? await collect(message) : undefined);
};
