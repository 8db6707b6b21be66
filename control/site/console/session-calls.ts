import type { Middleware } from 'koa';
import type { Caller } from '../../../shared/directory/api-keys.ts';
import { apiKeyOf, type Authenticator } from '../../../shared/directory/authenticator.ts';
import { AppError } from '../../../shared/errors.ts';
import type { RequestState } from '../../http/middleware/request-state.ts';
import { type ConsoleSessions, isOwnPage } from './console-sessions.ts';

/** Where the console's session is begun, looked at, and ended. */
export const SESSION_PATH = '/console/session';

interface SessionCalls {
  readonly get: Middleware<RequestState>;
  readonly post: Middleware<RequestState>;
  readonly delete: Middleware<RequestState>;
}

function refuseOtherPages(...[ctx]: Parameters<Middleware<RequestState>>): void {
  ctx.state.routePath = SESSION_PATH;
  ctx.set('cache-control', 'no-store');
  if (!isOwnPage(ctx.req)) throw new AppError('forbidden', 'only the console itself may ask this');
}

/** Whose key it is; nobody's when it was deleted since. */
async function findCaller(
  authenticator: Authenticator,
  apiKey: string,
): Promise<Caller | undefined> {
  try {
    return await authenticator.authenticate(apiKey);
  } catch (error) {
    if (error instanceof AppError && error.code === 'unauthorized') return undefined;
    throw error;
  }
}

/**
 * The calls with which the console's page signs in and out. They are not part of the public API:
 * any other client sends its key itself. The key comes in `Authorization`, as everywhere.
 */
export function sessionCalls(
  sessions: ConsoleSessions,
  authenticator: Authenticator,
  region: string,
): SessionCalls {
  const show = ({ organization, keyId, scopes }: Caller, expiresAt: number): object => ({
    ...{ organization, keyId, scopes, region },
    expiresAt: new Date(expiresAt).toISOString(),
  });
  return {
    async get(ctx, next) {
      refuseOtherPages(ctx, next);
      const session = await sessions.read(ctx.req);
      const caller = session && (await findCaller(authenticator, session.apiKey));
      // Not 401: to have no session is an answer here, not a failure.
      const data = session && caller ? show(caller, session.expiresAt) : null;
      ctx.body = { success: true, data };
    },
    async post(ctx, next) {
      refuseOtherPages(ctx, next);
      const header = ctx.get('authorization');
      const caller = await authenticator.authenticate(header);
      ctx.state.notes['accountId'] = caller.accountId;
      const { cookie, expiresAt } = sessions.begin(apiKeyOf(header));
      ctx.set('set-cookie', cookie);
      ctx.body = { success: true, data: show(caller, expiresAt) };
    },
    async delete(ctx, next) {
      refuseOtherPages(ctx, next);
      await sessions.end(ctx.req);
      ctx.set('set-cookie', sessions.forgotten);
      ctx.body = { success: true };
    },
  };
}
