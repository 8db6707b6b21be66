import { visit } from 'jsonc-parser';

/**
 * The first key that occurs twice in an object of a JSON text, or undefined. JSON.parse silently
 * keeps the last value (RFC 8259, section 4, leaves it open).
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
