import type { Middleware } from 'koa';
import { newRequestId, requestIdPattern } from '../../../shared/ids.ts';
import type { Logger } from '../../../shared/log.ts';
import type { Histogram } from '../../../shared/metrics.ts';
import type { RequestState } from './request-state.ts';

const acceptable = new RegExp(requestIdPattern, 'u');

/**
 * Gives every request an id (the caller's own `X-Request-Id` where it is a plain one), measures it,
 * and writes one wide event when it is over.
 */
export function requestLog(
  log: Logger,
  durations: Histogram<'method' | 'route' | 'status'>,
): Middleware<RequestState> {
  return async (ctx, next) => {
    const given = ctx.get('x-request-id');
    ctx.state.requestId = acceptable.test(given) ? given : newRequestId();
    ctx.state.arrivedAt = performance.now();
    ctx.state.notes = {};
    ctx.state.routePath = 'none';
    ctx.state.plainUnauthorized = false;
    ctx.state.bringsUpSandbox = false;
    ctx.set('x-request-id', ctx.state.requestId);
    try {
      await next();
    } finally {
      const durationMs = performance.now() - ctx.state.arrivedAt;
      const { method, status } = ctx;
      const { requestId, routePath: route, notes } = ctx.state;
      durations.observe({ method, route, status: String(status) }, durationMs / 1000);
      log.info(
        {
          requestId,
          method,
          route,
          status,
          durationMs: Math.round(durationMs * 10) / 10,
          ...notes,
        },
        'request',
      );
    }
  };
}
