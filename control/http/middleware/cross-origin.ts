import type { Middleware } from 'koa';
import { AppError } from '../../../shared/errors.ts';
import {
  admitOrigin,
  allowPreflight,
  isPreflight,
  varyByOrigin,
} from '../../../shared/http/cross-origin.ts';
import { originsOfShared } from '../share-links.ts';
import type { Deps } from '../../region/deps.ts';
import type { RequestState } from './request-state.ts';

const SHARED = /^\/api\/shared\/([^/]+)$/u;

/**
 * Lets pages of these origins read every answer, and those that a disk allows its shared files.
 * Answers their preflights; those of other origins are refused with 403.
 */
export const crossOrigin =
  (deps: Deps, origins: readonly string[]): Middleware<RequestState> =>
  async (ctx, next) => {
    const { req, res } = ctx;
    let isAdmitted = admitOrigin(req, res, origins);
    const [, token] = SHARED.exec(ctx.path) ?? [];
    if (token !== undefined) {
      // The answer varies by origin whatever the disk allows now: it may change while a cache has
      // the answer.
      varyByOrigin(res);
      const ofDisk = ctx.get('origin') === '' ? [] : await originsOfShared(deps, token);
      isAdmitted = admitOrigin(req, res, ofDisk) || isAdmitted;
    }
    if (!isPreflight(req)) {
      await next();
      return;
    }
    if (!isAdmitted) {
      throw new AppError(
        'forbidden',
        'pages of this origin may not read this; see ALLOWED_ORIGINS, and allowedOrigins of disks',
      );
    }
    ctx.respond = false;
    ctx.status = 204; // For the log.
    allowPreflight(req, res);
  };
