import type { Middleware } from 'koa';
import type { ReplicaConfirmation } from '../../../shared/directory/replica-confirmation.ts';
import type { Route } from '../route.ts';
import type { RequestState } from './request-state.ts';

/** Answers a call that changed something once replicas of Redis have the change, too. */
export function confirmWrites(
  { event }: Route,
  confirmation: ReplicaConfirmation,
): Middleware<RequestState> {
  if (event === undefined) return (_ctx, next) => next();
  return async (_ctx, next) => {
    const confirm = confirmation.begin();
    await next();
    await confirm();
  };
}
