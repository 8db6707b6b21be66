import type { LookupAddress } from 'node:dns';
import { Resolver } from 'node:dns/promises';
import { readFile } from 'node:fs/promises';
import { isIP } from 'node:net';
import { toError } from '../../../shared/errors.ts';

const HOSTS_FILE = '/etc/hosts';

/** Until a server is asked again, and how often: together less than an attempt may take. */
const PATIENCE = { timeout: 2_000, tries: 2 } as const;

const ofFamily = (result: PromiseSettledResult<string[]>, family: 4 | 6): LookupAddress[] =>
  result.status === 'fulfilled' ? result.value.map((address) => ({ address, family })) : [];

/** The addresses that the machine's own file gives a name. */
async function addressesInFile(name: string): Promise<LookupAddress[]> {
  const text = await readFile(HOSTS_FILE, 'utf8').catch(() => '');
  const lines = text.split('\n').map((line) => line.replace(/#.*/u, '').trim().split(/\s+/u));
  return lines
    .filter(([, ...names]) => names.some((known) => known.toLowerCase() === name))
    .map(([address = '']) => ({ address, family: isIP(address) }))
    .filter(({ family }) => family !== 0);
}

/**
 * Finds the addresses of a name by the file of hosts, then by DNS, until the signal ends that. The
 * system's own lookup cannot be ended, and takes one of two threads that the whole process has for
 * lookups: names of callers must not be looked up there.
 * @param servers of DNS; else those of the machine
 * @throws Error when the name has no address, or the signal was aborted
 */
export async function resolveName(
  hostname: string,
  signal: AbortSignal,
  servers?: readonly string[],
): Promise<LookupAddress[]> {
  const name = hostname.toLowerCase().replace(/\.$/u, '');
  const known = await addressesInFile(name);
  if (known.length > 0) return known;
  signal.throwIfAborted();
  const resolver = new Resolver(PATIENCE);
  if (servers !== undefined) resolver.setServers(servers);
  const cancel = (): void => resolver.cancel();
  signal.addEventListener('abort', cancel, { once: true });
  try {
    const [v4, v6] = await Promise.allSettled([resolver.resolve4(name), resolver.resolve6(name)]);
    const found = [...ofFamily(v4, 4), ...ofFamily(v6, 6)];
    if (found.length === 0 && v4.status === 'rejected') throw toError(v4.reason);
    return found;
  } finally {
    signal.removeEventListener('abort', cancel);
  }
}
