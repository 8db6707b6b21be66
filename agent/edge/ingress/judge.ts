import type { PortRoute } from '../../../shared/directory/sandbox-routes.ts';

/** The decision about a request, from the directory alone. */
export type Verdict =
  /** The request passes, and wakes its sandbox. */
  | 'pass'
  /** The request passes if a service turns out to publish the port. */
  | 'ask'
  | 'refuse';

/**
 * Judges a request to a port.
 * @param route undefined: there is no such sandbox, which must look like one whose port is private
 * @param now milliseconds since the epoch
 */
export function judge(route: PortRoute | undefined, port: number, now = Date.now()): Verdict {
  if (route === undefined) return 'refuse';
  const { isExposed, token, hasServiceIngress, isServicePort } = route;
  if (isExposed) return 'pass';
  const isLive = token !== undefined && (token.expiresAt ?? Number.POSITIVE_INFINITY) > now;
  if (isLive && token.port === port) return 'pass';
  if (!hasServiceIngress) return 'refuse';
  return isServicePort ? 'pass' : 'ask';
}
