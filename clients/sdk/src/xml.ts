/* The part of XML that answers of the object API use: elements without attributes or comments. */

const ENTITIES: Readonly<Record<string, string>> = {
  lt: '<',
  gt: '>',
  amp: '&',
  quot: '"',
  apos: "'",
};

const HEX = 16;

function characterOf(entity: string, name: string): string {
  if (!name.startsWith('#')) return ENTITIES[name] ?? entity;
  const code = name.startsWith('#x') ? Number.parseInt(name.slice(2), HEX) : Number(name.slice(1));
  return String.fromCodePoint(code);
}

/**
 * @internal What the elements of a name contain, in order; the name occurs in none of them again.
 */
export function xmlElements(xml: string, name: string): string[] {
  const elements = new RegExp(`<${name}(?: [^>]*)?>([^]*?)</${name}>`, 'gu');
  return [...xml.matchAll(elements)].map(([, inner = '']) => inner);
}

/** @internal The text of the first element of a name. */
export function xmlText(xml: string, name: string): string | undefined {
  return xmlElements(xml, name)[0]?.replaceAll(/&(#?\w+);/gu, characterOf);
}
