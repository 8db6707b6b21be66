import type { OutputChunk, Sandbox } from '@berth/sdk';
import { quote } from '../quote.ts';

/** A request of a session. */
export type Request =
  | { readonly type: 'shell' }
  | { readonly type: 'exec'; readonly command: string };

/** The shell of the user in /etc/passwd, as `login` takes it; /bin/sh where that is none. */
const FIND_SHELL = `id=$(id -u); shell=
while IFS=: read -r _ _ user _ _ _ path; do
  if [ "$user" = "$id" ]; then shell=$path; break; fi
done 2>/dev/null </etc/passwd
case $shell in */nologin | */false) shell= ;; esac
[ -x "$shell" ] || shell=/bin/sh
SHELL=$shell; export SHELL; cd 2>/dev/null`;

/**
 * A command for the sandbox that first writes its process number as a line, then becomes the user's
 * shell in their home directory.
 */
export function announcingCommand(request: Request): string {
  const become =
    request.type === 'shell' ? 'exec "$shell" -l' : `exec "$shell" -c ${quote(request.command)}`;
  return `${FIND_SHELL}; echo "$$"; ${become}`;
}

const LINE_MAX = 64;

/**
 * Takes the line with the process number off the output of such a command.
 * @returns the number, undefined when the command ended before; and the output that followed the
 *   line
 */
export async function readProcessNumber(
  output: AsyncIterator<OutputChunk>,
): Promise<{ number: number | undefined; rest: Uint8Array }> {
  let line = Buffer.alloc(0);
  for (let next; !(next = await output.next()).done;) {
    line = Buffer.concat([line, next.value.bytes]);
    const end = line.indexOf('\n');
    if (end !== -1)
      return { number: Number(line.toString('latin1', 0, end)), rest: line.subarray(end + 1) };
    if (line.length > LINE_MAX) break;
  }
  return { number: undefined, rest: line };
}

/**
 * Sends SIGHUP to the first process of a command whose client has gone. Detached processes run on.
 */
export async function hangUp(sandbox: Sandbox, number: number | undefined): Promise<void> {
  if (number === undefined || !Number.isSafeInteger(number)) return;
  await sandbox.run(`kill -HUP ${number} 2>/dev/null; true`).catch(() => undefined);
}
