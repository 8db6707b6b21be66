import { visit } from 'jsonc-parser';

/**
 * The first key that an object in a JSON text has twice, or undefined. JSON.parse keeps the last
 * one in silence (RFC 8259, section 4, leaves it open).
 */
export function findDuplicateKey(text: string): string | undefined {
  const objects: Set<string>[] = [];
  let duplicate: string | undefined;
  visit(text, {
    onObjectBegin: () => {
      objects.push(new Set());
    },
    onObjectEnd: () => {
      objects.pop();
    },
    onObjectProperty: (name) => {
      const keys = objects.at(-1);
      if (keys?.has(name) === true) duplicate ??= name;
      keys?.add(name);
    },
  });
  return duplicate;
}
