import { readFile } from 'node:fs/promises';
import { isIPv4 } from 'node:net';
import { NETWORK_LIMITS } from '../limits.ts';
import type { HostGroups } from '../../system/helper-group.ts';
import { ROUTER_ADDRESS } from './addresses.ts';
import { type DaemonSpec, endDaemon, keepDaemon } from './daemon.ts';
import type { RouterPlan } from './router-plan.ts';

/** Where systemd keeps the resolvers behind its own one, which listens on a loopback address. */
const RESOLVER_FILES = ['/etc/resolv.conf', '/run/systemd/resolve/resolv.conf'];
const NAME = 'resolver';

/** The resolvers of the host that can be reached from another network namespace. */
export async function hostResolvers(files: readonly string[] = RESOLVER_FILES): Promise<string[]> {
  for (const file of files) {
    const text = await readFile(file, 'utf8').catch(() => '');
    const found = [...text.matchAll(/^\s*nameserver\s+(\S+)/gmu)].map(([, name = '']) => name);
    const usable = found.filter((name) => isIPv4(name) && !name.startsWith('127.'));
    if (usable.length > 0) return usable;
  }
  return [];
}

/**
 * Besides `bind` and `server`, which dnsmasq keeps to itself, domains in which name servers tell
 * about themselves in the class CHAOS (RFC 4892): PowerDNS and Unbound.
 */
const CHAOS_DOMAINS = ['pdns', 'unbound'];

/**
 * The resolver that the sandboxes of a host share. It has nothing of the host's own names, and no
 * answers with IPv6 addresses, because sandboxes have no IPv6. It keeps no answers: from the time
 * that is left of one, a sandbox would learn what another asked for, and when.
 */
const sharedResolver = (plan: RouterPlan, resolvers: readonly string[]): DaemonSpec => ({
  name: NAME,
  namespace: plan.namespace,
  command: [
    '/usr/sbin/dnsmasq',
    ...['--conf-file=/dev/null', '--no-resolv', '--no-hosts', '--no-poll', '--pid-file'],
    ...['--user=nobody', '--group=nogroup', '--no-ident'],
    ...['--bind-interfaces', `--listen-address=${ROUTER_ADDRESS}`],
    ...['--cache-size=0', '--filter-AAAA'],
    ...CHAOS_DOMAINS.map((domain) => `--local=/${domain}/`),
    `--dns-forward-max=${NETWORK_LIMITS.dnsQuestionsPerHostMax}`,
    ...resolvers.map((address) => `--server=${address}`),
  ],
});

/** Has the shared resolver run, asking these resolvers. */
export const keepResolver = (
  groups: HostGroups,
  plan: RouterPlan,
  resolvers: readonly string[],
): Promise<void> => keepDaemon(groups, sharedResolver(plan, resolvers));

export const endResolver = (groups: HostGroups): Promise<void> => endDaemon(groups, NAME);
