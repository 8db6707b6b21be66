import { AppError } from '../../shared/errors.ts';
import type { Host } from './known-hosts.ts';
import type { Deps } from './deps.ts';

/**
 * The host that owns something.
 * @param what for the message
 * @throws AppError `unavailable` while the host cannot be reached
 */
export async function findHost({ hosts }: Deps, hostId: string, what: string): Promise<Host> {
  const owner = await hosts.find(hostId);
  if (owner !== undefined) return owner;
  throw new AppError('unavailable', `the host of ${what} is away now; try again later`);
}
