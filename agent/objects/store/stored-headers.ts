import { parseJson } from '../../../shared/json.ts';

/*
 * The headers in the record of an object: for each a line `name:value`, the prefix of metadata as one
 * hyphen. Header values contain no line feed. Records of older versions have them as JSON.
 */
const META = 'x-amz-meta-';

export function encodeHeaders(headers: Readonly<Record<string, string>>): Buffer {
  const lines = Object.entries(headers).map(([name, value]) => {
    const short = name.startsWith(META) ? `-${name.slice(META.length)}` : name;
    return `${short}:${value}`;
  });
  return Buffer.from(lines.join('\n'));
}

export function decodeHeaders(bytes: Buffer): Record<string, string> {
  const text = bytes.toString('utf8');
  if (text.startsWith('{')) return parseJson(text) as Record<string, string>;
  return Object.fromEntries(
    text.split('\n').map((line) => {
      const end = line.indexOf(':');
      const name = line.slice(0, end);
      return [name.startsWith('-') ? META + name.slice(1) : name, line.slice(end + 1)];
    }),
  );
}
