import type { Middleware } from 'koa';
import type { Logger } from '../../../shared/log.ts';
import { retryAfter, statusOf, toCallerError, toWaitableError } from '../error-status.ts';
import { RefusedRequest } from '../../region/refused-request.ts';
import type { RequestState } from './request-state.ts';

/**
 * Renders every failure: the envelope, the status of its code, and nothing the caller may not see.
 */
export function renderErrors(log: Logger): Middleware<RequestState> {
  return async (ctx, next) => {
    try {
      await next();
    } catch (thrown) {
      const known = toCallerError(thrown);
      const error = ctx.state.bringsUpSandbox ? toWaitableError(known) : known;
      const { code, message } = error;
      ctx.status = statusOf[code];
      ctx.state.notes['code'] = code;
      ctx.set('cache-control', 'no-store'); // A file that is missing now may be there later.
      const refused = error instanceof RefusedRequest ? error : undefined;
      const seconds = retryAfter(code);
      if (seconds !== undefined) ctx.set('retry-after', String(seconds));
      if (refused !== undefined) ctx.set(refused.headers);
      if (code === 'unauthorized' && ctx.state.plainUnauthorized) {
        ctx.type = 'text/plain';
        ctx.body = plainText(ctx.get('authorization'));
      } else {
        ctx.body = { success: false, error: message, code, ...refused?.fields };
      }
      if (ctx.status >= 500 && code !== 'not_implemented') {
        log.error({ requestId: ctx.state.requestId, code, err: known.cause ?? known }, 'failure');
      }
    }
  };
}

/** The two texts of a plain-text 401 (docs/api.md, Authentication). */
const plainText = (authorization: string): string =>
  authorization.trim() === '' ? 'Must provide an Authorization header' : 'Unauthorized';
