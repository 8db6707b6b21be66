import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Middleware } from 'koa';
import { apiKeyOf, type Authenticator } from '../../../shared/directory/authenticator.ts';
import { AppError } from '../../../shared/errors.ts';
import { FairShares, type Permit } from '../../../shared/fair-shares.ts';
import { clientAddress } from '../../../shared/http/client-address.ts';
import { allowsOrigin } from '../../../shared/http/cross-origin.ts';
import { lingerAfterAnswer } from '../../../shared/http/early-answer.ts';
import { SITE_LIMITS } from '../limits.ts';
import type { BodyShares } from '../../http/body-shares.ts';
import { API_VERSION } from '../../http/openapi.ts';
import type { RequestState } from '../../http/middleware/request-state.ts';
import { takeRequest } from '../../http/middleware/take-request.ts';
import type { Deps } from '../../region/deps.ts';
import type { CallName, Cancellations } from './cancellations.ts';
import type { OwnApi } from './own-api.ts';
import { type McpMessage, readMessage } from './read-message.ts';

export interface McpOptions {
  readonly ownApi: OwnApi;
  readonly cancellations: Cancellations;
  readonly authenticator: Authenticator;
  readonly bodies: BodyShares;
  /** Where requests are counted. */
  readonly deps: Pick<Deps, 'directory' | 'usage'>;
  /** Where callers reach this API; its own pages may use it. */
  readonly publicBaseUrl: string;
  /** The operator's setting: pages of other origins that may. */
  readonly allowedOrigins: readonly string[];
  /** Addresses of proxies whose `X-Forwarded-For` is trusted. */
  readonly trustedProxies: readonly string[];
}

export const MCP_PATH = '/mcp';
const SESSION = 'mcp-session-id';
const SESSION_LENGTH_MAX = 128;

const textOf = (value: unknown): string => (typeof value === 'string' ? value.slice(0, 64) : '');
const fieldOf = (object: unknown, name: string): unknown =>
  typeof object === 'object' && object !== null
    ? (Reflect.get(object, name) as unknown)
    : undefined;

/**
 * Guards against DNS rebinding, by which a page of another site reaches the server under a name of
 * its own: the origin must be a known one, whatever name the request was sent to.
 * https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#security-warning
 */
function checkOrigin(
  { headers }: IncomingMessage,
  { publicBaseUrl, allowedOrigins }: McpOptions,
): void {
  const { origin } = headers;
  if (origin === undefined || origin === new URL(publicBaseUrl).origin) return;
  if (allowsOrigin(allowedOrigins, origin)) return;
  throw new AppError('forbidden', 'pages of this origin may not use this; see ALLOWED_ORIGINS');
}

function sessionOf({ headers }: IncomingMessage): string {
  const session = headers[SESSION] ?? '';
  if (typeof session === 'string' && session.length <= SESSION_LENGTH_MAX) return session;
  throw new AppError('bad_request', 'Mcp-Session-Id is not one that this server gave');
}

function takePermit(permits: FairShares, accountId: string): Permit {
  const permit = permits.take([accountId]);
  if (permit !== undefined) return permit;
  if (permits.isFull) throw new AppError('no_capacity', 'too many tools are in use; try again');
  throw new AppError('rate_limited', 'the account uses too many tools at once; try again');
}

/** Which call a request begins or cancels, if its session tells its calls from those of others. */
function callNameOf(keyId: string, session: string, id: unknown): CallName | undefined {
  if (session === '' || (typeof id !== 'string' && typeof id !== 'number')) return undefined;
  return { keyId, session, id };
}

/** Loaded with the first message: few nodes ever need it. */
async function loadParts() {
  const [sdk, mcp, transport] = await Promise.all([
    import('../../../clients/sdk/src/index.ts'),
    import('../../../clients/mcp/src/index.ts'),
    import('@modelcontextprotocol/sdk/server/streamableHttp.js'),
  ]);
  return { ...sdk, ...mcp, ...transport };
}

interface Served {
  readonly message: McpMessage;
  readonly apiKey: string;
  readonly baseUrl: string;
  /** Headers of each request that the work makes. */
  readonly headers: Readonly<Record<string, string>>;
  readonly begin: (cancel: () => void) => Disposable | undefined;
}

/**
 * Answers one message: nothing of it is kept, so that the next may go to any node. When the caller
 * hangs up, the work ends: nobody could fetch the answer.
 */
async function answer(
  request: IncomingMessage,
  response: ServerResponse,
  { message, apiKey, baseUrl, headers, begin }: Served,
): Promise<void> {
  const { Berth, createMcpServer, StreamableHTTPServerTransport } = await loadParts();
  const tagged: typeof fetch = (input, init) => {
    const inner = new Request(input, init);
    for (const [name, value] of Object.entries(headers)) inner.headers.set(name, value);
    return fetch(inner);
  };
  const berth = new Berth({ baseUrl, apiKey, fetch: tagged });
  const server = createMcpServer({ berth, version: API_VERSION });
  const transport = new StreamableHTTPServerTransport({}); // Without sessions.
  await server.connect(transport);
  const end = (): Promise<void> => server.close(); // Aborts what still works for the call.
  using _call = begin(() => {
    end().catch(() => response.destroy());
  });
  const handled = transport.handleRequest(request, response, message);
  if (!response.destroyed) await once(response, 'close');
  await end();
  await handled;
}

/** Serves tools for language models by the Model Context Protocol (docs/mcp.md). */
export function serveMcp(options: McpOptions): Middleware<RequestState> {
  const { ownApi, cancellations, authenticator, bodies, deps } = options;
  const permits = new FairShares(SITE_LIMITS.mcpCallsPerNodeMax);
  return async (ctx) => {
    const { req, res, state } = ctx;
    state.routePath = MCP_PATH;
    checkOrigin(req, options);
    const authorization = ctx.get('authorization');
    const { accountId, keyId } = await authenticator.authenticate(authorization);
    state.notes['accountId'] = accountId;
    await takeRequest(ctx, deps, accountId);
    using _permit = takePermit(permits, accountId);
    using held = bodies.begin(accountId);
    const message = await readMessage(req, held).finally(() => {
      if (!req.complete) lingerAfterAnswer(req, res);
    });
    const { method, id, params } = message;
    Object.assign(state.notes, {
      mcp: textOf(method),
      tool: textOf(fieldOf(params, 'name')),
    });
    const session = sessionOf(req);
    if (method === 'notifications/cancelled') {
      const call = callNameOf(keyId, session, fieldOf(params, 'requestId'));
      if (call !== undefined) await cancellations.cancel(call);
    }
    // Kept nowhere: it only tells the calls of one client from those of the next.
    if (method === 'initialize') res.setHeader(SESSION, randomUUID());
    const call = method === 'tools/call' ? callNameOf(keyId, session, id) : undefined;
    const apiKey = apiKeyOf(authorization);
    const baseUrl = await ownApi.url();
    ctx.respond = false; // From here on the answer is ours, not Koa's.
    ctx.status = 200;
    const begin = (cancel: () => void): Disposable | undefined =>
      call === undefined ? undefined : cancellations.begin(call, cancel);
    const client = ownApi.headersFor(clientAddress(req, options.trustedProxies));
    const headers = { ...client, 'x-request-id': state.requestId };
    await answer(req, res, { message, apiKey, baseUrl, headers, begin });
  };
}
