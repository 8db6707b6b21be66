import { once } from 'node:events';
import {
  Agent,
  type IncomingMessage,
  request as httpRequest,
  type ServerResponse,
} from 'node:http';
import { pipeline } from 'node:stream/promises';
import Type from 'typebox';
import { lingerAfterAnswer } from './early-answer.ts';
import { LIMITS } from './limits.ts';
import { signToken, verifyToken } from './secrets.ts';
import { compile } from './validate.ts';

/*
 * Requests of the object API travel between the parts as they came, so that their signatures stay
 * valid: control passes them to an agent, an agent to the disk's handler. A signed header says who
 * the client is, since its address decides what it may do.
 */

const PURPOSE = 'object-forward';
const FORWARDED_HEADER = 'x-berth-forwarded';
// RFC 9110, section 7.6.1
const HOP_BY_HOP = new Set([
  ...['connection', 'keep-alive', 'proxy-authenticate', 'proxy-authorization', 'te', 'trailer'],
  ...['transfer-encoding', 'upgrade', FORWARDED_HEADER],
]);

const Origin = Type.Object({
  /** The client's IP address. */
  address: Type.String({ minLength: 1, maxLength: 64 }),
  /** How many times more the request may be passed on. */
  hopsLeft: Type.Enum(['0', '1']),
});
export type Origin = Type.Static<typeof Origin>;

const checkOrigin = compile(Origin);

/** Who sent a forwarded request, or undefined unless one of the cluster's parts forwarded it. */
export function readOrigin(secret: string, request: IncomingMessage): Origin | undefined {
  const token = request.headers[FORWARDED_HEADER];
  if (typeof token !== 'string') return undefined;
  const claims = verifyToken(secret, PURPOSE, token);
  return typeof claims === 'string' ? undefined : checkOrigin(claims, 'forwarded request');
}

function passedOn(rawHeaders: readonly string[]): string[] {
  return rawHeaders.filter((_, index) => {
    const name = rawHeaders[index - (index % 2)] ?? '';
    return !HOP_BY_HOP.has(name.toLowerCase());
  });
}

/** Passes requests on, over connections that are kept. */
export class RequestForwarder {
  readonly #secret: string;
  readonly #agent = new Agent({ keepAlive: true, maxFreeSockets: 64 });

  /** @param secret of the cluster */
  constructor(secret: string) {
    this.#secret = secret;
  }

  /**
   * Passes a request on and its answer back, both as streams; a client that waits for it is told
   * to go on when the other side says so. When the answer breaks off in its middle, so does the
   * caller's connection.
   * @param baseUrl of the internal port that it goes to
   * @throws Error when there is no answer; nothing was answered then
   */
  async forward(
    request: IncomingMessage,
    response: ServerResponse,
    { baseUrl, origin }: { baseUrl: string; origin: Origin },
  ): Promise<void> {
    const expiresAt = Date.now() + LIMITS.objectForwardTokenTtlMs;
    const token = signToken(this.#secret, PURPOSE, origin, expiresAt);
    const { hostname, port } = new URL(baseUrl);
    const upstream = httpRequest({
      agent: this.#agent,
      hostname,
      port,
      method: request.method,
      path: request.url,
      headers: [...passedOn(request.rawHeaders), FORWARDED_HEADER, token],
    });
    response.once('close', () => upstream.destroy());
    upstream.once('continue', () => response.writeContinue());
    request.pipe(upstream);
    const [answer] = (await once(upstream, 'response')) as [IncomingMessage];
    upstream.on('error', () => undefined);
    if (!request.complete) {
      request.unpipe(upstream); // Nobody wants the rest of the body.
      lingerAfterAnswer(request, response);
    }
    response.writeHead(answer.statusCode ?? 502, passedOn(answer.rawHeaders));
    await pipeline(answer, response);
  }

  close(): void {
    this.#agent.destroy();
  }
}
