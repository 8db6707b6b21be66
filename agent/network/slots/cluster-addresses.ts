import { lookup } from 'node:dns/promises';
import { isIPv4 } from 'node:net';
import { networkInterfaces } from 'node:os';
import type { Directory } from '../../../shared/directory/directory.ts';
import { toError } from '../../../shared/errors.ts';
import type { Logger } from '../../../shared/log.ts';

const hostAddresses = (): string[] =>
  Object.values(networkInterfaces())
    .flatMap((addresses) => addresses ?? [])
    .map(({ address }) => address)
    .filter((address) => isIPv4(address));

/**
 * Tells the IPv4 addresses that belong to the cluster itself: those of this host, of Redis, of
 * control nodes, and of other hosts. A name that cannot be looked up now counts as it did before.
 */
export function clusterAddresses(
  redisNames: () => Promise<readonly string[]>,
  { controlNodes, hosts }: Pick<Directory, 'controlNodes' | 'hosts'>,
  log: Logger,
): () => Promise<string[]> {
  const known = new Map<string, readonly string[]>();
  const find = async (name: string): Promise<readonly string[]> => {
    if (isIPv4(name)) return [name];
    try {
      const found = await lookup(name, { all: true, family: 4 });
      known.set(
        name,
        found.map(({ address }) => address),
      );
    } catch (error) {
      log.warn({ name, err: toError(error) }, 'cluster:lookupFailed');
    }
    return known.get(name) ?? [];
  };
  let urls: readonly string[] = [];
  return async () => {
    try {
      const nodes = await controlNodes.live();
      urls = [...nodes.map(({ linkUrl }) => linkUrl), ...(await hosts.urls())];
    } catch (error) {
      log.warn({ err: toError(error) }, 'cluster:listFailed'); // The former ones stay closed.
    }
    const names = new Set([...(await redisNames()), ...urls.map((url) => new URL(url).hostname)]);
    const found = await Promise.all([...names].map(find));
    return [...hostAddresses(), ...found.flat()].filter((address) => !address.startsWith('127.'));
  };
}
