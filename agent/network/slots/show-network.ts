import { parseJson } from '../../../shared/json.ts';
import { run } from '../../system/spawn.ts';

/** How often `ip` is asked at most: other programs may change interfaces all the time. */
const ATTEMPTS_MAX = 10;
const INTERRUPTED = 'Dump was interrupted';

/**
 * Reads the answer of `ip -json`, unchecked. Asks again when interfaces, addresses or routes
 * changed while the kernel listed them: `ip` warns of that, since some may be missing.
 * @param args of ip(8), such as `link`, `show`
 * @throws ProgramError when it fails; Error when it was interrupted every time
 */
export async function showNetwork(args: readonly string[]): Promise<unknown> {
  for (let attempt = 1; attempt <= ATTEMPTS_MAX; attempt += 1) {
    const shown = await run('ip', ['-json', ...args]);
    if (!shown.includes(INTERRUPTED)) return parseJson(shown);
  }
  throw new Error(`ip ${args.join(' ')} was interrupted ${String(ATTEMPTS_MAX)} times`);
}

/** The names of all interfaces. @param namespace the agent's own without one */
export async function linkNames(namespace?: string): Promise<string[]> {
  const within = namespace === undefined ? [] : ['-n', namespace];
  const shown = await showNetwork([...within, 'link', 'show']);
  return (shown as { ifname: string }[]).map(({ ifname }) => ifname);
}
