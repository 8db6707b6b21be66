import type { Hosts } from '../shared/directory/hosts.ts';
import { toError } from '../shared/errors.ts';
import { LIMITS } from '../shared/limits.ts';
import type { Logger } from '../shared/log.ts';

/**
 * Says again and again where other hosts reach this one.
 * @returns stops that; other hosts then pass nothing on to this one
 */
export function announceHost(
  hosts: Hosts,
  host: { readonly hostId: string; readonly internalUrl: string },
  log: Logger,
): () => Promise<void> {
  const announce = (): void => {
    hosts.announce(host.hostId, host.internalUrl).catch((error: unknown) => {
      log.warn({ err: toError(error) }, 'host:notAnnounced');
    });
  };
  announce();
  const timer = setInterval(announce, LIMITS.hostAnnounceMs);
  return async () => {
    clearInterval(timer);
    await hosts.withdraw(host.hostId);
  };
}
