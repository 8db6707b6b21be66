import type { Berth, Process, Sandbox } from '@berth/sdk';
import type { CommandUnknownOpts } from '@commander-js/extra-typings';
import { leaf } from '../command.ts';
import { openedForSessions } from '../context.ts';
import { EndingSignals } from '../ending-signals.ts';
import { UsageFailure } from '../failure.ts';
import { findSandbox, findSandboxForSession } from '../find.ts';
import type { Output } from '../output.ts';
import { pipeProcess } from '../process-io.ts';
import { commandLine, splitTarget } from '../quote.ts';
import { connectTerminal, requireTerminal, terminalSize } from '../terminal.ts';
import { duration, variable } from '../values.ts';
import { creating, creationOf, type CreationOptions } from './sandbox-create.ts';

const LOGIN_SHELL = 'if command -v bash >/dev/null; then exec bash -l; else exec sh -l; fi';

interface RunOptions extends CreationOptions {
  readonly interactive?: true | undefined;
  readonly tty?: true | undefined;
  readonly detach?: true | undefined;
  readonly cwd?: string | undefined;
  readonly timeout?: number | undefined;
  readonly keep?: true | undefined;
}

/** The words on the command line, of which commander has removed a `--`. */
function allWords(command: CommandUnknownOpts): readonly string[] {
  let root = command;
  while (root.parent !== null) root = root.parent;
  return Reflect.get(root, 'rawArgs') as readonly string[];
}

/** Variables of this terminal that programs with screens need. */
const terminalVariables = (): Record<string, string> => {
  const { TERM = 'xterm-256color', COLORTERM } = process.env;
  return { TERM, ...(COLORTERM === undefined ? {} : { COLORTERM }) };
};

async function runIn(sandbox: Sandbox, line: string, options: RunOptions): Promise<number> {
  const { interactive = false, tty = false, env = {}, cwd, timeout } = options;
  const common = { cwd, timeoutSeconds: timeout };
  if (!tty) return pipeProcess(await sandbox.start(line, { ...common, env }), interactive);
  const terminal = terminalSize();
  const variables = { ...terminalVariables(), ...env };
  const remote = await sandbox.start(line, { ...common, env: variables, terminal });
  return connectOrLeave(remote, sandbox);
}

async function connectOrLeave(remote: Process, sandbox: Sandbox): Promise<number> {
  const code = await connectTerminal(remote);
  if (code !== undefined) return code;
  const back = `berth sandbox shell ${sandbox.name} --attach ${remote.id}`;
  process.stderr.write(`\r\nleft running; back to it: ${back}\n`);
  return 0;
}

/** Begins a command that goes on without us; `berth sandbox logs` shows what it writes. */
async function begin(
  sandbox: Sandbox,
  command: string,
  { cwd, env, timeout }: RunOptions,
  output: Output,
): Promise<void> {
  if (cwd !== undefined)
    throw new UsageFailure('--detach has no --cwd', 'put a cd into the command');
  const exec = await sandbox.execs.begin({
    command,
    ...(env === undefined ? {} : { env }),
    ...(timeout === undefined ? {} : { timeout_seconds: timeout }),
  });
  output.done(
    `runs as ${exec.exec_id}; its output: berth sandbox logs ${sandbox.name} ${exec.exec_id} --follow`,
    exec,
    exec.exec_id,
  );
}

async function runInNew(
  berth: Berth,
  line: string,
  options: RunOptions,
  output: Output,
): Promise<number> {
  const creation = await creationOf(berth, options);
  using signals = new EndingSignals(() => {
    if (options.keep !== true) output.note('the sandbox is deleted; a second Ctrl-C leaves it');
  });
  const sandbox = await output.during('creating a sandbox', () => berth.sandboxes.create(creation));
  if (options.keep === true) output.note(`sandbox ${sandbox.name}`);
  try {
    if (signals.exitCode !== undefined) return signals.exitCode;
    // Its variables are those of the sandbox already.
    return await runIn(sandbox, line, { ...options, env: undefined });
  } finally {
    if (options.keep !== true) await sandbox.delete();
  }
}

const CREATION_OPTIONS = [
  'image',
  'snapshot',
  'cpus',
  'memory',
  'mount',
  'port',
  'publicServices',
  'network',
  'maxTime',
  'idleTime',
  'keep',
] as const;

/** @throws UsageFailure when options do not go together */
function check(target: string | undefined, words: readonly string[], options: RunOptions): void {
  if (words.length === 0) {
    throw new UsageFailure('a command is missing', 'write berth sandbox run box -- ls -l');
  }
  if (options.tty === true) requireTerminal('leave out --tty');
  if (options.detach === true && (options.tty === true || options.interactive === true)) {
    throw new UsageFailure('--detach goes with neither -i nor -t');
  }
  if (target === undefined) {
    if (options.detach === true && options.keep !== true) {
      throw new UsageFailure('the new sandbox would be deleted at once', 'add --keep');
    }
    return;
  }
  const useless = CREATION_OPTIONS.find((name) => options[name] !== undefined);
  if (useless === undefined) return;
  const flag = `--${useless.replace(/[A-Z]/gu, (letter) => `-${letter.toLowerCase()}`)}`;
  throw new UsageFailure(
    `${flag} is for new sandboxes`,
    'leave out the sandbox: berth sandbox run -- ls',
  );
}

export const runCommand = () =>
  creating('run')
    .summary('run a command in a sandbox, or in a new one')
    .description(
      `Run a command in a sandbox and end with its exit code. Without a sandbox, as in
"berth sandbox run -- ls", a new one is made for the command and deleted afterwards.

One word is a command line for /bin/sh; several are a program and its arguments.`,
    )
    .argument('[words...]', 'name or id of the sandbox, and the command')
    .usage('[options] [sandbox] -- <command...>')
    .passThroughOptions()
    .option('-i, --interactive', 'give it our input')
    .option('-t, --tty', 'give it a terminal')
    .option('-d, --detach', 'do not wait for it')
    .option('-w, --cwd <directory>', 'where it runs')
    .option('--timeout <time>', 'kill it after so long, such as 10m', duration)
    .option('--keep', 'do not delete the new sandbox')
    .action(async (given, options, command) => {
      const { target, command: words } = splitTarget(given, allWords(command));
      check(target, words, options);
      const { berth, output } = await openedForSessions(options);
      const line = commandLine(words);
      if (options.detach === true) {
        const sandbox =
          target === undefined
            ? await berth.sandboxes.create(await creationOf(berth, options))
            : await findSandbox(berth, target);
        return begin(sandbox, line, options, output);
      }
      process.exitCode =
        target === undefined
          ? await runInNew(berth, line, options, output)
          : await runIn(await findSandboxForSession(berth, target), line, options);
    });

export const shellCommand = () =>
  leaf('shell')
    .summary('open a shell in a sandbox')
    .description(
      `Open a shell in a sandbox. It survives a broken network, a pause of the sandbox and a restart of its
host's agent. Enter ~ . leaves it running and says how to come back.`,
    )
    .argument('<sandbox>', 'its name or id')
    .option('--attach <process-id>', 'go back to a process that was left')
    .option('-e, --env <name=value>', 'set a variable, or pass it on by its name', variable)
    .option('-w, --cwd <directory>', 'where it begins')
    .action(async (name, { attach, env, cwd, ...options }) => {
      requireTerminal('berth sandbox run does without one');
      const { berth } = await openedForSessions(options);
      const sandbox = await findSandboxForSession(berth, name);
      if (attach === undefined) {
        process.exitCode = await runIn(sandbox, LOGIN_SHELL, { tty: true, env, cwd });
        return;
      }
      const remote = await sandbox.attach(attach);
      await remote.resize(terminalSize());
      process.exitCode = await connectOrLeave(remote, sandbox);
    });
