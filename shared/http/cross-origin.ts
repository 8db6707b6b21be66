import type { IncomingMessage, ServerResponse } from 'node:http';

/*
 * CORS, as the Fetch standard has it (https://fetch.spec.whatwg.org/#http-cors-protocol): which
 * pages of other origins may read answers. Credentials in the sense of that standard (cookies) are
 * never allowed, since Berth has none: keys and signatures are headers that the page itself must
 * know.
 */

/** In a list of origins: the pages of every origin. */
const ANY_ORIGIN = '*';

/**
 * Methods that a page may use, whatever the path has: a path that lacks a method still answers 405.
 */
const METHODS = 'DELETE, GET, HEAD, PATCH, POST, PUT';
/** For how long a browser may remember the answer to a preflight. */
const PREFLIGHT_SECONDS = 600;

/**
 * Headers of answers that scripts may read besides those that every script may (Content-Type, …).
 */
const EXPOSED = [
  ...['Accept-Ranges', 'Allow', 'Content-Disposition', 'Content-Encoding', 'Content-Range', 'ETag'],
  ...[
    'Idempotency-Replayed',
    'Location',
    'RateLimit',
    'RateLimit-Policy',
    'Retry-After',
    'X-Ignored-Fields',
    'X-Request-Id',
  ],
];

const FIELD_NAMES = /^[\w!#$%&'*+.^`|~-]+(?:[ \t]*,[ \t]*[\w!#$%&'*+.^`|~-]+)*$/u;

/** Whether a text is an origin as browsers write it, such as `https://app.example.com`, or `*`. */
export function isOrigin(text: string): boolean {
  if (text === ANY_ORIGIN) return true;
  return /^https?:[^*]+$/u.test(text) && URL.canParse(text) && new URL(text).origin === text;
}

/** @param origins origins as {@link isOrigin} accepts them */
export const allowsOrigin = (origins: readonly string[], origin: string): boolean =>
  origins.includes(origin) || origins.includes(ANY_ORIGIN);

/** Whether a browser asks on behalf of a page what the page may send. */
export const isPreflight = ({ method, headers }: IncomingMessage): boolean =>
  method === 'OPTIONS' &&
  headers.origin !== undefined &&
  headers['access-control-request-method'] !== undefined;

function addToList(response: ServerResponse, name: string, values: readonly string[]): void {
  const present = String(response.getHeader(name) ?? '').split(', ');
  response.setHeader(name, [...new Set([...present, ...values])].filter(Boolean).join(', '));
}

/** Says that the answer may differ for another origin, so that caches keep one for each. */
export const varyByOrigin = (response: ServerResponse): void =>
  addToList(response, 'vary', ['Origin']);

/**
 * Lets the page that sent a request read the answer, if its origin is among those given. Call it
 * before the head of the answer is written.
 * @param origins origins as {@link isOrigin} accepts them; with none, nothing is added to the
 *   answer
 * @returns whether the page may read the answer
 */
export function admitOrigin(
  { headers: { origin } }: IncomingMessage,
  response: ServerResponse,
  origins: readonly string[],
): boolean {
  if (origins.length === 0) return false;
  varyByOrigin(response); // Also for requests of no page: caches may keep their answers.
  if (origin === undefined || !allowsOrigin(origins, origin)) return false;
  const isForAll = origins.includes(ANY_ORIGIN);
  response.setHeader('access-control-allow-origin', isForAll ? ANY_ORIGIN : origin);
  exposeHeaders(response, EXPOSED);
  return true;
}

const exposeHeaders = (response: ServerResponse, names: readonly string[]): void =>
  addToList(response, 'access-control-expose-headers', names);

/** Lets the page of an admitted origin read the headers of S3 that the answer has now. */
export function exposeObjectHeaders(response: ServerResponse): void {
  if (!response.hasHeader('access-control-allow-origin')) return;
  const names = response.getHeaderNames().filter((name) => name.startsWith('x-amz-'));
  exposeHeaders(response, names);
}

/**
 * Ends the answer to a preflight of an admitted origin with 204. The page may send any header:
 * which ones a request obeys or refuses is the same for all callers.
 */
export function allowPreflight({ headers }: IncomingMessage, response: ServerResponse): void {
  const names = headers['access-control-request-headers'];
  response.setHeader('access-control-allow-methods', METHODS);
  if (names !== undefined && FIELD_NAMES.test(names)) {
    response.setHeader('access-control-allow-headers', names);
  }
  response.setHeader('access-control-max-age', PREFLIGHT_SECONDS);
  addToList(response, 'vary', ['Access-Control-Request-Headers']);
  response.writeHead(204).end();
}

/**
 * Whether a WebSocket may be opened. Browsers do not apply CORS to WebSockets but say whose page it
 * is. Programs say nothing, or name the address itself.
 */
export function allowsUpgrade({ headers }: IncomingMessage, origins: readonly string[]): boolean {
  const { origin, host } = headers;
  if (origin === undefined || allowsOrigin(origins, origin)) return true;
  return URL.canParse(origin) && new URL(origin).host === host;
}
