import { UsageFailure } from './failure.ts';

/** Quotes a word of a shell's command line, whatever is in it. */
export const quote = (word: string): string =>
  /^[\w@%+=:,./-]+$/u.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;

/**
 * The command line for a shell: one word is a command line, as in `berth disk exec work 'ls | wc
 * -l'`; several are a program and its arguments, which come to it as they are.
 */
export const commandLine = (words: readonly string[]): string =>
  words.length === 1 ? (words[0] ?? '') : words.map((word) => quote(word)).join(' ');

/**
 * The words of a remote command after the name of what it runs in.
 * @throws UsageFailure when an option stands there: the shell would refuse it in words of its own
 */
export function commandBehindName(words: readonly string[]): readonly string[] {
  const [first = ''] = words;
  if (first === '--') return words.slice(1);
  if (!first.startsWith('-')) return words;
  throw new UsageFailure(
    `${first} stands after the name, where the command begins`,
    'put options before the name, and -- before a command that begins with a dash',
  );
}

/**
 * The name of what a remote command runs in, and the command. The name may be left out when the
 * command follows `--`.
 * @param words what commander found, which has dropped a `--` in front of them
 * @param all the whole command line
 */
export function splitTarget(
  words: readonly string[],
  all: readonly string[],
): { readonly target: string | undefined; readonly command: readonly string[] } {
  if (all[all.length - words.length - 1] === '--') return { target: undefined, command: words };
  const [target, ...rest] = words;
  return { target, command: commandBehindName(rest) };
}
