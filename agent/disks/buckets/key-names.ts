const NAME_BYTES_MAX = 255;
/** S3 counts bytes, Azure characters, which are never more. */
const KEY_BYTES_MAX = 1024;

/** How long a path may be to be a key below the prefix, in bytes. */
export const keyBytesMaxBelow = (prefix: string): number =>
  KEY_BYTES_MAX - Buffer.byteLength(prefix);

/** Why a key cannot be the path of a file; undefined when it can. */
export function whyNoPath(key: string): string | undefined {
  if (key.includes('\0')) return 'a file name cannot contain a NUL character';
  if (key.includes('\uFFFD')) return 'the key is not UTF-8';
  for (const part of key.split('/')) {
    if (part === '') return 'an empty part cannot be a file name';
    if (part === '.' || part === '..') return `${part} cannot be a file name`;
    if (Buffer.byteLength(part) > NAME_BYTES_MAX) {
      return `a part is longer than ${NAME_BYTES_MAX} bytes`;
    }
  }
  return undefined;
}

/** The key for the other version of a file that both sides have changed. */
export function conflictName(path: string, now: Date): string {
  const stamp = now.toISOString().replaceAll(/[-:.]/gu, '');
  const suffix = `.conflict-${stamp}`;
  const slash = path.lastIndexOf('/') + 1;
  let name = path.slice(slash);
  while (Buffer.byteLength(name + suffix) > NAME_BYTES_MAX) name = name.slice(0, -1);
  return `${path.slice(0, slash)}${name}${suffix}`;
}
