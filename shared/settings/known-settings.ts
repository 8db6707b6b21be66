import Type, { type TObject } from 'typebox';
import { AgentSettings } from './agent-settings.ts';
import { CommonSettings } from './cluster-settings.ts';
import { ControlSettings } from './control-settings.ts';
import { absolutePath, port } from './kinds.ts';

/** Settings of a checkout, which scripts read. */
export const ScriptSettings = Type.Object({
  REDIS_PORT: port({ setUp: '8720', description: 'Redis of this checkout' }),
  BERTH_CACHE_DIR: absolutePath({
    default: '/var/cache/berth',
    description: 'what the checkouts of a machine share',
  }),
});

/** A part of a cluster that gets settings. */
export type Part = 'control' | 'agent';

const namesOf = (...schemas: readonly TObject[]): ReadonlySet<string> =>
  new Set(schemas.flatMap(({ properties }) => Object.keys(properties)));

const ofPart: Readonly<Record<Part, ReadonlySet<string>>> = {
  control: namesOf(CommonSettings, ControlSettings),
  agent: namesOf(CommonSettings, AgentSettings),
};
const known = new Set([...ofPart.control, ...ofPart.agent, ...namesOf(ScriptSettings)]);

/** Names that Node, OpenSSL and the C library read, which a configuration file may hold as well. */
const FOREIGN = /^(?:NODE|SSL|LC)_|^(?:LANG|TZ)$/u;
/**
 * Variables of the command line, which may be exported where a service is started (docs/cli.md).
 */
const OF_CLIENTS: ReadonlySet<string> = new Set(['BERTH_URL', 'BERTH_API_KEY', 'BERTH_PROFILE']);
/** Only these can be told from other programs' variables in an environment. */
const OWN = /^(?:BERTH_(?!TEST_)|OTEL_)/u;
const DISTANCE_MAX = 2;

/** Whether this is a setting, of whichever part. */
export const isSetting = (name: string): boolean => known.has(name);

/** Whether this is read by Node, OpenSSL or the C library. */
export const isForeign = (name: string): boolean => FOREIGN.test(name);

/**
 * The variables that a part is to be started with: all but the settings of other parts, which may
 * be secrets. @param part undefined: one that reads no settings, such as Redis
 */
export const variablesFor = (
  part: Part | undefined,
  variables: Readonly<NodeJS.ProcessEnv>,
): NodeJS.ProcessEnv =>
  Object.fromEntries(
    Object.entries(variables).filter(
      ([name]) => !known.has(name) || (part !== undefined && ofPart[part].has(name)),
    ),
  );

/** Problems of names in a configuration file: each name must be a setting. */
export const unknownInFile = (names: readonly string[]): string[] =>
  names.flatMap((name) => (known.has(name) || FOREIGN.test(name) ? [] : [problemOf(name)]));

/** Problems of names in an environment, where other programs have variables, too. */
export const unknownInEnvironment = (names: readonly string[]): string[] =>
  names.flatMap((name) =>
    known.has(name) || OF_CLIENTS.has(name) || !OWN.test(name) ? [] : [problemOf(name)],
  );

/** Names in an environment that are probably misspelt settings; they may also be foreign. */
export const suspectInEnvironment = (names: readonly string[]): string[] =>
  names.flatMap((name) =>
    !known.has(name) && !OWN.test(name) && similarTo(name) !== undefined ? [problemOf(name)] : [],
  );

function problemOf(name: string): string {
  const similar = similarTo(name);
  const hint = similar === undefined ? 'docs/settings.md lists all' : `did you mean ${similar}?`;
  return `${name} is no setting: ${hint}`;
}

function similarTo(name: string): string | undefined {
  const [family = ''] = name.split('_');
  return [...known].find(
    (other) => other.startsWith(`${family}_`) && distance(name, other) <= DISTANCE_MAX,
  );
}

/** How many characters must be added, removed or replaced to turn one text into the other. */
function distance(a: string, b: string): number {
  if (Math.abs(a.length - b.length) > DISTANCE_MAX) return Infinity;
  let former = Array.from({ length: b.length + 1 }, (_, index) => index);
  for (let i = 0; i < a.length; i += 1) {
    const row = [i + 1];
    for (let j = 1; j <= b.length; j += 1) {
      const replaced = (former[j - 1] ?? 0) + (b[j - 1] === a[i] ? 0 : 1);
      row.push(Math.min(replaced, (former[j] ?? 0) + 1, (row[j - 1] ?? 0) + 1));
    }
    former = row;
  }
  return former[b.length] ?? Infinity;
}
