import { AppError } from '../shared/errors.ts';
import type { Host } from './agent-hub.ts';

const freeSlots = ({ load, jobsPending }: Host): number =>
  load.execSlots - Math.max(load.execsRunning, jobsPending);

/**
 * The host for work on a disk: its handler, or for a disk without one the host with the most room
 * (DESIGN "Delivery"). Pure.
 * @throws AppError `unavailable` or `no_capacity`; both are worth another try
 */
export function chooseHost(hosts: readonly Host[], handler: string | undefined): string {
  if (handler !== undefined) {
    const host = hosts.find(({ hostId }) => hostId === handler);
    if (host !== undefined) return host.hostId;
    throw new AppError('unavailable', 'the host that handles this disk cannot be reached now');
  }
  const [best] = hosts
    .filter(({ load }) => !load.draining)
    .sort((a, b) => freeSlots(b) - freeSlots(a));
  if (best === undefined) throw new AppError('no_capacity', 'no host is available now');
  return best.hostId;
}
