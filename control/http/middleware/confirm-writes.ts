import type { Middleware } from 'koa';
import type { ReplicaConfirmation } from '../../../shared/directory/replica-confirmation.ts';
import type { RequestState } from './request-state.ts';

/** Answers a call that changed something once replicas of Redis have the change, too. */
export const confirmWrites =
  (confirmation: ReplicaConfirmation): Middleware<RequestState> =>
  (_ctx, next) =>
    confirmation.confirmed(next);
