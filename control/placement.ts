import { AppError } from '../shared/errors.ts';
import type { Host } from './agent-hub.ts';

const freeSlots = ({ load, jobsPending }: Host): number =>
  load.execSlots - Math.max(load.execsRunning + load.execsWaiting, jobsPending);

/**
 * The hosts for work on disks, best first: those that handle some of them, by how many; for disks
 * without a handler the one with the most room (DESIGN "Delivery"). Pure.
 * @param handlers of each disk, where it has one
 * @returns at least one host id
 * @throws AppError `unavailable` or `no_capacity`; both are worth another try
 */
export function rankHosts(
  hosts: readonly Host[],
  handlers: readonly (string | undefined)[],
): string[] {
  const counts = new Map<string, number>();
  for (const handler of handlers) {
    if (handler === undefined) continue;
    const host = hosts.find(({ hostId }) => hostId === handler);
    if (host === undefined) {
      throw new AppError('unavailable', 'the host that handles this disk cannot be reached now');
    }
    if (host.load.draining) {
      throw new AppError('unavailable', 'the host that handles this disk takes no work now');
    }
    counts.set(handler, (counts.get(handler) ?? 0) + 1);
  }
  if (counts.size > 0) {
    return [...counts].sort(([, a], [, b]) => b - a).map(([hostId]) => hostId);
  }
  const [best] = hosts
    .filter(({ load }) => !load.draining)
    .sort(
      (a, b) =>
        Number(a.load.storageLow) - Number(b.load.storageLow) || freeSlots(b) - freeSlots(a),
    );
  if (best === undefined) throw new AppError('no_capacity', 'no host is available now');
  return [best.hostId];
}
