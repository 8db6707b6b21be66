import type { ErrorCode } from '../../shared/errors.ts';
import { statusOf, waitableCode } from './error-status.ts';
import type { Route } from './route.ts';

/** Errors of an endpoint, besides its own, when a host works on a disk for it. */
export const DISK_HOST_ERRORS = ['no_capacity', 'host_full', 'disk_moved'] as const;

/** The same when the host of a sandbox works for it. */
export const SANDBOX_HOST_ERRORS = [
  'no_capacity',
  'host_full',
  'runtime_retryable',
  'not_enabled',
  'timeout',
] as const;

/**
 * Creating and changing things adds to the directory; nothing is added while that is almost full.
 */
export const addsToDirectory = ({ method, writesNothing }: Route): boolean =>
  (method === 'post' || method === 'put') && writesNothing !== true;

/** Also where a body has no fields: those that it has nevertheless are named as ignored. */
export const readsJson = ({ method, upload }: Route): boolean =>
  (method === 'post' || method === 'put') && upload !== true;

/**
 * Every code that an endpoint can answer with: those that it declares and what all of its kind can.
 */
function codesOf(route: Route): ErrorCode[] {
  const codes: ErrorCode[] = [...route.errors, 'internal_server_error', 'unavailable'];
  if (route.scope !== 'public') codes.push('unauthorized', 'rate_limited');
  if (route.fillsDisks === true) codes.push('account_limit_reached');
  if (route.scope !== 'public' && route.scope !== 'read') codes.push('insufficient_scope');
  if (readsJson(route)) codes.push('bad_request', 'body_too_large');
  if (route.idempotent === true) codes.push('idempotency_conflict', 'idempotency_answer_lost');
  if (route.method !== 'get') codes.push('outcome_unknown');
  if (addsToDirectory(route)) codes.push('directory_full');
  const shown = route.bringsUpSandbox === true ? codes.map(waitableCode) : codes;
  return [...new Set(shown)];
}

/** The codes of an endpoint by their statuses, in ascending order. */
export function codesByStatus(route: Route): ReadonlyMap<number, readonly ErrorCode[]> {
  const byStatus = Map.groupBy(codesOf(route).toSorted(), (code) => statusOf[code]);
  return new Map([...byStatus].toSorted(([a], [b]) => a - b));
}
