import type { Middleware } from 'koa';
import { AppError } from '../../../shared/errors.ts';
import { admitOrigin, allowPreflight, isPreflight } from '../../../shared/http/cross-origin.ts';
import type { RequestState } from './request-state.ts';

/**
 * Lets pages of these origins read every answer, and answers their preflights; those of other
 * origins are refused with 403.
 */
export const crossOrigin =
  (origins: readonly string[]): Middleware<RequestState> =>
  (ctx, next) => {
    const isAdmitted = admitOrigin(ctx.req, ctx.res, origins);
    if (!isPreflight(ctx.req)) return next();
    if (!isAdmitted) {
      throw new AppError(
        'forbidden',
        'pages of this origin may not use the API; the operator lists origins in ALLOWED_ORIGINS',
      );
    }
    ctx.respond = false;
    ctx.status = 204; // For the log.
    allowPreflight(ctx.req, ctx.res);
    return undefined;
  };
