import { repeatInBackground } from '../../shared/background.ts';
import type { Hosts } from '../../shared/directory/hosts.ts';
import { LIMITS } from '../../shared/limits.ts';

/**
 * Announces in the directory, repeatedly, where other hosts reach this one.
 * @returns a function that withdraws the announcement, so that other hosts forward nothing more here
 */
export function announceHost(
  hosts: Hosts,
  host: { readonly hostId: string; readonly internalUrl: string },
): () => Promise<void> {
  const stop = repeatInBackground('host.announce', LIMITS.hostAnnounceMs, () =>
    hosts.announce(host.hostId, host.internalUrl),
  );
  return async () => {
    stop();
    await hosts.withdraw(host.hostId);
  };
}
