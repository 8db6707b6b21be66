import { run } from '../../system/spawn.ts';

/** Where `ip netns` keeps its named namespaces. */
export const NAMESPACES = '/run/netns';

/**
 * Named by its path because an npm package also has a program of that name, which exits with 0
 * without loading anything.
 */
export const NFT = '/usr/sbin/nft';

/** Runs a program in a namespace; in the agent's own one without a name. */
export const runWithin = (
  namespace: string | undefined,
  command: readonly [string, ...string[]],
  input?: string,
): Promise<string> => {
  const [program, ...args] = command;
  const options = input === undefined ? {} : { input };
  return namespace === undefined
    ? run(program, args, options)
    : run('nsenter', [`--net=${NAMESPACES}/${namespace}`, ...command], options);
};

/** Loads rules as one transaction: no packet meets half of them. */
export async function loadRules(namespace: string | undefined, rules: string): Promise<void> {
  await runWithin(namespace, [NFT, '-f', '-'], rules);
}

/** Runs commands of `ip -batch` in a namespace; in the agent's own one without a name. */
export async function configureLinks(
  namespace: string | undefined,
  lines: readonly string[],
): Promise<void> {
  const within = namespace === undefined ? [] : ['-n', namespace];
  await run('ip', [...within, '-batch', '-'], { input: `${lines.join('\n')}\n` });
}
