import type { ParameterizedContext } from 'koa';
import type { Caller } from '../../../shared/directory/api-keys.ts';

/** State of a request from the first middleware to the last. */
export interface RequestState {
  requestId: string;
  /** On the clock of `performance.now()`. */
  arrivedAt: number;
  /** Owner of the request's key; set once the key was checked. */
  caller?: Caller;
  /** Fields of the request's one log event. */
  notes: Record<string, unknown>;
  /** The route's path pattern, once known. */
  routePath: string;
  /** Errors of this route's authentication are plain text. */
  plainUnauthorized: boolean;
  /** See the route's field of the same name. */
  bringsUpSandbox: boolean;
}

export type RequestContext = ParameterizedContext<RequestState>;
