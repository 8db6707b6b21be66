import { readFile } from 'node:fs/promises';

/** Decodes the octal escapes of proc_pid_mountinfo(5). */
const unescape = (text: string): string =>
  text.replaceAll(/\\([0-7]{3})/gu, (_, digits: string) =>
    String.fromCodePoint(Number.parseInt(digits, 8)),
  );

const readLines = async (): Promise<string[]> =>
  (await readFile('/proc/self/mountinfo', 'utf8')).split('\n');

const targetOf = (line: string): string => unescape(line.split(' ')[4] ?? '');

/** Mount points below a directory, the deepest first: the order in which they can be unmounted. */
export async function mountsBelow(directory: string): Promise<string[]> {
  const targets = (await readLines()).map(targetOf);
  return targets.filter((target) => target.startsWith(`${directory}/`)).toReversed();
}

/** Where the file system of a device is mounted, in the namespace of this process. */
export async function mountsOf(device: string): Promise<string[]> {
  // The file system's type and its source follow a dash, since the number of fields before varies.
  const lines = (await readLines()).filter(
    (line) => line.split(' - ')[1]?.split(' ')[1] === device,
  );
  return lines.map(targetOf);
}
