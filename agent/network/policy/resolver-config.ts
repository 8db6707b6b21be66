import { type EgressRules, isByName, mayResolve } from '../../../shared/network/egress-rules.ts';
import type { EgressTarget } from '../../../shared/network/egress-target.ts';
import { namedRules, nameOf, setOf, TABLE } from './policy-names.ts';

export interface ResolverSettings {
  /** The address that guests query, and the port that their queries are redirected to. */
  readonly address: string;
  readonly port: number;
  /** The host's resolver, which queries are forwarded to. */
  readonly upstream: string;
  /** The port at the same address at which every name is refused, and counted. */
  readonly namesPort: number;
}

/** Whether a rule is about every name below this one. */
const coversBelow = (target: EgressTarget, name: string): boolean =>
  target.kind === 'subdomains' && (name === target.name || name.endsWith(`.${target.name}`));

/**
 * How a slot's dnsmasq is started, which puts the addresses of names into the sets of their rules
 * before it answers. For dnsmasq a name includes everything below it, and of several names that fit
 * only the longest counts, so each name is listed with the sets of all rules about it.
 */
export const resolverCommand = (
  rules: EgressRules,
  settings: ResolverSettings,
): readonly [string, ...string[]] => [
  '/usr/sbin/dnsmasq',
  ...['--conf-file=/dev/null', '--no-resolv', '--no-hosts', '--no-poll', '--pid-file'],
  ...['--user=nobody', '--group=nogroup', '--log-facility=/dev/null', '--no-ident'],
  ...['--bind-interfaces', `--listen-address=${settings.address}`, `--port=${settings.port}`],
  '--filter-AAAA',
  '--cache-size=0', // An answer from the cache would not put its addresses into the sets again.
  ...nftSets(rules),
  ...(rules.narrowsNames
    ? allowedServers(rules, settings)
    : [`--server=${settings.upstream}`, ...unresolved(rules)]),
];

/** Has only names that a rule allows asked upstream. */
function allowedServers(rules: EgressRules, { upstream, namesPort }: ResolverSettings): string[] {
  const refusing = `${upstream}#${namesPort}`;
  const serverFor = (name: string): string => (mayResolve(rules, name) ? upstream : refusing);
  const named = [...rules.allow, ...rules.deny].filter(isByName);
  const names = [...new Set(named.map(({ target }) => nameOf(target)))];
  return [
    `--server=${refusing}`,
    ...names.flatMap((name) => [
      `--server=/${name}/${serverFor(name)}`,
      `--server=/*.${name}/${serverFor(`*.${name}`)}`,
    ]),
  ];
}

function nftSets(rules: EgressRules): string[] {
  const named = namedRules(rules);
  const lists = [
    ...named.deny.map((rule) => ({ rule, set: setOf('deny', rule) })),
    ...named.allow.map((rule) => ({ rule, set: setOf('allow', rule) })),
  ];
  const names = [...new Set(lists.map(({ rule }) => nameOf(rule.target)))];
  return names.map((name) => {
    const sets = lists
      .filter(({ rule: { target } }) => nameOf(target) === name || coversBelow(target, name))
      .map(({ set }) => `4#${TABLE.replace(' ', '#')}#${set}`);
    return `--nftset=/${name}/${[...new Set(sets)].join(',')}`;
  });
}

/**
 * The addresses of names below an allowed one must not count as its own, so these names have no
 * addresses, unless a rule is about them.
 */
function unresolved(rules: EgressRules): string[] {
  const { allow } = namedRules(rules);
  const exact = allow.filter(({ target }) => target.kind === 'domain');
  const closed = exact
    .map(({ target }) => nameOf(target))
    .filter((name) => !allow.some(({ target }) => coversBelow(target, name)));
  const isBelow = (name: string): boolean => closed.some((above) => name.endsWith(`.${above}`));
  const open = [...new Set(allow.map(({ target }) => nameOf(target)))].filter(isBelow);
  return [
    ...closed.map((name) => `--local=/*.${name}/`),
    ...open.map((name) => `--server=/${name}/#`),
  ];
}
