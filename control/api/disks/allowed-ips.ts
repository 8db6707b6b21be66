import ipaddr from 'ipaddr.js';
import { AppError } from '../../../shared/errors.ts';
import { parseNetwork } from '../../../shared/http/ip-allowlist.ts';
import type { Deps } from '../../region/deps.ts';
import type { RequestContext } from '../../region/call-disk-host.ts';
import { recordDisk } from './record-disk.ts';

/**
 * Octal and shortened forms (`010.0.0.1`, `10/8`) are refused: they mean other addresses than most
 * people who write them think. So are zones, which mean nothing on another host.
 */
const isAddress = (text: string): boolean =>
  ipaddr.IPv4.isValidFourPartDecimal(text) || (ipaddr.IPv6.isValid(text) && !text.includes('%'));

/** Normal form of an address or CIDR block, so that equal lists compare equal. */
function normalise(text: string): string {
  const isBlock = isAddress(text.split('/')[0] ?? '') && ipaddr.isValidCIDR(text);
  if (isAddress(text) || isBlock) return parseNetwork(text).join('/');
  throw new AppError('bad_request', `allowedIps: ${text} is not an IP address or CIDR block`);
}

/** @throws AppError `bad_request` naming the first entry that is no address */
export const normaliseAllowedIps = (list: readonly string[]): string[] => [
  ...new Set(list.map((text) => normalise(text))),
];

/** Replaces the allowed addresses. They bind disk users, not API keys (docs/object-api.md). */
export async function setAllowedIps(
  deps: Deps,
  disk: { accountId: string; diskId: string },
  list: readonly string[],
  context: RequestContext,
): Promise<string[]> {
  const allowedIps = normaliseAllowedIps(list);
  const { accountId, diskId } = disk;
  if (!(await deps.directory.disks.setAllowedIps({ accountId, id: diskId }, allowedIps))) {
    throw new AppError('not_found', `disk ${diskId} not found`);
  }
  await recordDisk(deps, disk, context);
  return allowedIps;
}
