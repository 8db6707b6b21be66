import type { Middleware } from 'koa';
import { serveInSpan } from '../../../shared/spans.ts';
import type { RequestState } from './request-state.ts';

/** Asked for all the time, by load balancers and supervisors. */
const UNTRACED = new Set(['/healthz', '/readyz']);

/** Gives every request a span, within the caller's trace if it sent a `traceparent`. */
export const traceRequests: Middleware<RequestState> = (ctx, next) => {
  if (UNTRACED.has(ctx.path)) return next();
  const { method } = ctx;
  const attributes = { 'http.request.method': method };
  const span = { name: method, kind: 'server', attributes } as const;
  return serveInSpan(ctx.get('traceparent'), span, async (open) => {
    await next();
    const { requestId, routePath, notes } = ctx.state;
    const route = routePath === 'none' ? undefined : routePath;
    if (route !== undefined) open.rename(`${method} ${route}`);
    open.set({
      'http.route': route,
      'http.response.status_code': ctx.status,
      'berth.request_id': requestId,
    });
    const { code = ctx.status } = notes as { code?: string | number };
    if (ctx.status >= 500) open.fail(String(code));
  });
};
