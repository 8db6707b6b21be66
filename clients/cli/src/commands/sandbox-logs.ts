import type { Sandbox, SandboxExec } from '@berth/sdk';
import { leaf } from '../command.ts';
import { opened } from '../context.ts';
import { findSandbox } from '../find.ts';
import { NewOutput } from '../new-output.ts';
import type { Output, Shown } from '../output.ts';
import { exitCodeOf } from '../process-io.ts';
import { formatAge } from '../text.ts';

const POLL_MS = 500;

const outcomeOf = ({ status, exit_code: code }: SandboxExec): string =>
  code === undefined || code === null ? status : `${status} (${code})`;

const EXECS: Shown<SandboxExec> = {
  id: ({ exec_id: id }) => id,
  columns: [
    { head: 'ID', of: ({ exec_id: id }) => id },
    { head: 'STATUS', of: outcomeOf },
    { head: 'STARTED', of: ({ started_at: time }) => formatAge(time) },
    { head: 'COMMAND', of: ({ command }) => command, gives: true },
  ],
};

/** The exit code of a command that has ended; 0 while it runs. */
function codeOf({ status, exit_code: code, exit_reason: reason }: SandboxExec): number {
  return status === 'running' ? 0 : exitCodeOf({ status, exitCode: code ?? undefined, reason });
}

/** Prints what a command writes until it has ended. @returns the exit code */
async function follow(sandbox: Sandbox, id: string, isFollowed: boolean): Promise<number> {
  const stdout = new NewOutput();
  const stderr = new NewOutput();
  for (;;) {
    const exec = await sandbox.execs.get(id);
    const isLast = exec.status !== 'running' || !isFollowed;
    process.stdout.write(stdout.in(exec.stdout ?? '', isLast));
    process.stderr.write(stderr.in(exec.stderr ?? '', isLast));
    if (isLast) return codeOf(exec);
    await new Promise((resolve) => {
      setTimeout(resolve, POLL_MS);
    });
  }
}

async function printLog(sandbox: Sandbox, id: string, isFollowed: boolean, output: Output) {
  if (!output.isJson) return follow(sandbox, id, isFollowed);
  const exec = await (isFollowed ? sandbox.execs.ended(id) : sandbox.execs.get(id));
  output.json(exec);
  return codeOf(exec);
}

export const logsCommand = () =>
  leaf('logs')
    .summary('list the commands that were begun with run --detach, and their output')
    .description(
      `List the commands that were begun with "berth sandbox run --detach" or over the API; with an id, print what
one has written, and end with its exit code once it has ended.`,
    )
    .argument('<sandbox>', 'its name or id')
    .argument('[id]', 'of the command')
    .option('-f, --follow', 'go on until it has ended')
    .action(async (name, id, { follow: isFollowed = false, ...options }) => {
      const { output, berth } = await opened(options);
      const sandbox = await findSandbox(berth, name);
      if (id === undefined) return output.list(await sandbox.execs.list(), EXECS);
      process.exitCode = await printLog(sandbox, id, isFollowed, output);
    });
