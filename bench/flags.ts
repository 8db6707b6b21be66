import assert from 'node:assert';
import { parseArgs } from 'node:util';

/** A number, a switch that is off, or words of which the first one is the default. */
type Known = Readonly<Record<string, number | false | readonly string[]>>;

type Value<K> = K extends number ? number : K extends readonly (infer Word)[] ? Word : boolean;

export type Flags<K extends Known, Part extends string> = {
  readonly [Name in keyof K]: Value<K[Name]>;
} & { readonly only: ReadonlySet<Part> };

function valueOf(name: string, known: Known[string], given: string | boolean | undefined): unknown {
  if (typeof known === 'number') {
    const value = Number(given ?? known);
    const least = name === 'rounds' ? 1 : 0;
    assert(Number.isInteger(value) && value >= least, `--${name}: a number from ${least} on`);
    return value;
  }
  if (known === false) return given ?? false;
  const word = given ?? known[0];
  assert(known.includes(String(word)), `--${name}: ${known.join(' or ')}`);
  return word;
}

/**
 * Reads the flags of a benchmark.
 * @param parts those of `--only`
 * @param usual those that run without it
 */
export function readFlags<const K extends Known, const Part extends string = never>(
  args: readonly string[],
  known: K,
  parts: readonly Part[] = [],
  usual = parts,
): Flags<K, Part> {
  const names = Object.entries(known).map(([name, value]) => {
    const type = value === false ? ('boolean' as const) : ('string' as const);
    return [name, { type }] as const;
  });
  const options = { ...Object.fromEntries(names), only: { type: 'string' as const } };
  const { values } = parseArgs({ args: [...args], options });
  const given: Readonly<Record<string, string | boolean | undefined>> = values;
  const only = new Set(given['only'] === undefined ? usual : String(given['only']).split(','));
  for (const part of only) {
    assert(
      parts.some((each) => each === part),
      `--only: some of ${parts.join(',')}`,
    );
  }
  const read = Object.entries(known).map(([name, value]) => [
    name,
    valueOf(name, value, given[name]),
  ]);
  return { ...Object.fromEntries(read), only } as Flags<K, Part>;
}
