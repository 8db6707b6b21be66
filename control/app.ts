import Router, { type RouterMiddleware } from '@koa/router';
import Koa, { type Middleware } from 'koa';
import { AppError } from '../shared/errors.ts';
import { FairShares } from '../shared/fair-shares.ts';
import { HTTP_LIMITS } from './http/limits.ts';
import type { Logger } from '../shared/log.ts';
import type { Histogram } from '../shared/metrics.ts';
import type { ReadinessCheck } from '../shared/http/ops-server.ts';
import type { ReplicaConfirmation } from '../shared/directory/replica-confirmation.ts';
import type { Deps } from './region/deps.ts';
import { Authenticator } from '../shared/directory/authenticator.ts';
import { BodyShares } from './http/body-shares.ts';
import { audited, type AuditLogs } from './http/middleware/audit.ts';
import { confirmWrites } from './http/middleware/confirm-writes.ts';
import { crossOrigin } from './http/middleware/cross-origin.ts';
import { endpoint, type SharedParts } from './http/middleware/endpoint.ts';
import { renderErrors } from './http/middleware/errors.ts';
import { requestLog } from './http/middleware/request-log.ts';
import type { RequestState } from './http/middleware/request-state.ts';
import { traceRequests } from './http/middleware/trace-requests.ts';
import { type ConsoleOptions, mountConsole } from './site/console/mount-console.ts';
import { serveDocs } from './site/docs/serve-docs.ts';
import { openApiDocument } from './http/openapi.ts';
import { changes, type Route } from './http/route.ts';
import type { McpHost } from './site/mcp/open-mcp.ts';
import { MCP_PATH, serveMcp } from './site/mcp/serve-mcp.ts';
import { routes } from './routes.ts';

export interface AppOptions extends ConsoleOptions {
  readonly deps: Deps;
  readonly log: Logger;
  readonly durations: Histogram<'method' | 'route' | 'status'>;
  readonly ready: ReadinessCheck;
  /** Where changes are written down. */
  readonly logs: AuditLogs;
  readonly confirmation: ReplicaConfirmation;
  /** Origins whose pages may read the answers. */
  readonly allowedOrigins: readonly string[];
  /** Where tools for language models make their calls, and which of these can be cancelled. */
  readonly mcp: McpHost;
}

/** `/disks/{id}` as the router writes it: `/disks/:id`. */
const routerPath = (path: string): string => path.replaceAll(/\{(\w+)\}/gu, ':$1');

/**
 * The collection that a path is in: `disks` of `/api/disks/{id}`. Paths are read without regard to
 * case.
 */
const collectionOf = (path: string): string => path.split('/', 3)[2]?.toLowerCase() ?? '';

/** The steps of a call. One that changes nothing is neither confirmed nor audited. */
function stepsOf(
  route: Route,
  { deps, logs, confirmation }: AppOptions,
  parts: SharedParts,
): Middleware<RequestState>[] {
  const work = endpoint(deps, parts, route);
  return changes(route) ? [confirmWrites(confirmation), audited(route, logs), work] : [work];
}

const passOn: Middleware<RequestState> = (_ctx, next) => next();

/** A router tries its routes in turn, so each collection of the API has a router of its own. */
function routeApi(options: AppOptions, parts: SharedParts): RouterMiddleware<RequestState> {
  const routers = new Map<string, Router<RequestState>>();
  for (const route of routes) {
    const collection = collectionOf(route.path);
    const router = routers.get(collection) ?? new Router<RequestState>();
    router[route.method](routerPath(route.path), ...stepsOf(route, options, parts));
    routers.set(collection, router);
  }
  const served = new Map([...routers].map(([collection, router]) => [collection, router.routes()]));
  return async (ctx, next) => {
    await (served.get(collectionOf(ctx.path)) ?? passOn)(ctx, next);
  };
}

/** The public API: middleware in the order in which a request meets it. */
export function createApp(options: AppOptions): Koa<RequestState> {
  const { deps, log, durations, ready, allowedOrigins, mcp } = options;
  const app = new Koa<RequestState>();
  const router = new Router<RequestState>();
  const authenticator = new Authenticator(deps.directory.apiKeys);
  const { publicBaseUrl, http } = deps.config;
  const document = JSON.stringify(openApiDocument(routes, publicBaseUrl));
  router.get('/openapi.json', (ctx) => {
    ctx.type = 'application/json';
    ctx.body = document;
  });
  router.get('/docs{/*page}', serveDocs(document));
  const { trustedProxies } = http;
  const bodies = new BodyShares();
  const waits = new FairShares(HTTP_LIMITS.idempotentWaitsPerNodeMax);
  const callers = { deps, authenticator, bodies, publicBaseUrl, allowedOrigins, trustedProxies };
  router.post(MCP_PATH, serveMcp({ ...mcp, ...callers }));
  mountConsole(router, authenticator, deps, options);
  router.get('/healthz', (ctx) => {
    ctx.body = 'ok\n';
  });
  router.get('/readyz', async (ctx) => {
    const problem = await ready();
    ctx.status = problem === undefined ? 200 : 503;
    ctx.body = `${problem ?? 'ready'}\n`;
  });

  app.use(traceRequests);
  app.use(requestLog(log, durations));
  app.use(renderErrors(log));
  app.use(crossOrigin(deps, allowedOrigins));
  app.use(routeApi(options, { authenticator, bodies, waits }));
  app.use(router.routes());
  app.use((ctx) => {
    const tried = (Reflect.get(ctx, 'matched') ?? []) as { methods: string[] }[];
    const methods = new Set(tried.flatMap((layer) => layer.methods));
    const isRoot = ctx.path === '/' && (ctx.method === 'GET' || ctx.method === 'HEAD');
    if (isRoot && ctx.accepts('json', 'html') === 'html') {
      ctx.redirect('/docs');
      return;
    }
    if (isRoot) {
      throw new AppError('not_found', 'there is nothing here: see /docs and /openapi.json');
    }
    if (methods.size === 0) {
      throw new AppError('not_found', `there is nothing at ${ctx.method} ${ctx.path}`);
    }
    ctx.set('allow', [...methods].join(', '));
    throw new AppError('method_not_allowed', `${ctx.path} has no method ${ctx.method}`);
  });
  app.on('error', (error: unknown) => log.error({ err: error }, 'app:error'));
  return app;
}
