import { readFile } from 'node:fs/promises';

/** Decodes the octal escapes of proc_pid_mountinfo(5). */
const unescape = (text: string): string =>
  text.replaceAll(/\\([0-7]{3})/gu, (_, digits: string) =>
    String.fromCodePoint(Number.parseInt(digits, 8)),
  );

/** Mount points below a directory, the deepest first: the order in which they can be unmounted. */
export async function mountsBelow(directory: string): Promise<string[]> {
  const table = await readFile('/proc/self/mountinfo', 'utf8');
  return table
    .split('\n')
    .map((line) => unescape(line.split(' ')[4] ?? ''))
    .filter((target) => target.startsWith(`${directory}/`))
    .toReversed();
}
