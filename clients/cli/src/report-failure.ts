import { CommanderError } from '@commander-js/extra-typings';
import {
  ApiError,
  BerthError,
  CallTimeoutError,
  ConnectionError,
  UnauthorizedError,
} from '@berth/sdk';
import { COMMANDS } from './commands/index.ts';
import { EXIT, Failure, UnsavedFailure, UsageFailure } from './failure.ts';
import { visible, visibleJson } from './text.ts';

interface Explanation {
  /** For programs. */
  readonly code: string;
  readonly message: string;
  /** The next step for the user. */
  readonly next?: string | undefined;
  readonly exitCode: number;
}

/** Next steps after errors of the API, by their code. */
const NEXT: Readonly<Record<string, string>> = {
  sandbox_has_forks: 'delete those first, see berth sandbox ls and berth snapshot ls',
  snapshot_in_use: 'delete the sandboxes that were created from it first',
  sandbox_name_conflict: 'choose another name, see berth sandbox ls',
  snapshot_name_conflict: 'choose another name, see berth snapshot ls',
  disk_conflict: 'choose another name, see berth disk ls',
  no_capacity: 'stop or pause what is not needed, or try again later',
  not_enabled: 'ask the operator for a host that can, see berth doctor',
  outcome_unknown: 'look whether it was done before you repeat it',
  sandbox_failed: 'berth sandbox ls shows it, and berth sandbox rm deletes it',
  process_not_found: 'it ended more than 15 minutes ago, or its sandbox was stopped',
  image_not_ready: 'berth image build builds it',
  rate_limited: 'try again in a moment',
  redirected: 'use that URL: berth profile show says where the present one stands',
};

/** Words for the API's machine-readable values. */
const IN_WORDS: Readonly<Record<string, string>> = {
  sandbox_has_forks: 'forks or snapshots share its disk',
};

/** How a sandbox that rests runs again. */
const AWAKENING: Readonly<Record<string, string>> = {
  paused: 'berth sandbox resume lets it go on where it was',
  pausing: 'berth sandbox resume lets it go on where it was',
  stopped: 'berth sandbox start boots it',
  exited: 'berth sandbox start boots it',
  failed: 'berth sandbox get says why, and berth sandbox start boots it',
};

/**
 * Names are what people get wrong; the API shows the pattern of disks, or that of sandboxes and
 * snapshots.
 */
function explainField(message: string): Pick<Explanation, 'message' | 'next'> {
  const [, pattern] = /^body: name must match pattern "(.*)"$/u.exec(message) ?? [];
  if (pattern === undefined) return { message: message.replace(/^(?:body|query|path): /u, '') };
  const letters = pattern.includes('A-Z') ? 'letters, digits, - and _' : 'a to z, 0 to 9 and -';
  return { message: 'the name has characters that it may not have', next: `use ${letters}` };
}

/** The API names the status: `the sandbox is paused: its files are out of reach now`. */
function explainRest(message: string): Pick<Explanation, 'message' | 'next'> {
  const [sentence, status = ''] = /^the sandbox is (\w+)/u.exec(message) ?? [message];
  return { message: sentence, next: AWAKENING[status] ?? 'see berth sandbox get' };
}

/**
 * @param json whether the error is for a program: then it is one line of JSON on stderr.
 * @returns the exit code
 */
export function reportFailure(error: unknown, argv: readonly string[]): number {
  const { code, message, next, exitCode } = explain(error, argv);
  const isJson = argv.slice(0, dashesIn(argv)).includes('--json');
  const sentence = `${visible(message.trim().replace(/\.$/u, ''))}${next === undefined ? '.' : `: ${next}.`}`;
  process.stderr.write(
    isJson
      ? `${visibleJson({ error: { code, message, ...(next === undefined ? {} : { next }) } })}\n`
      : `berth: ${sentence}\n`,
  );
  return exitCode;
}

/** Where the words of a remote command begin. */
function dashesIn(argv: readonly string[]): number {
  const at = argv.indexOf('--');
  return at === -1 ? argv.length : at;
}

function explain(error: unknown, argv: readonly string[]): Explanation {
  if (error instanceof CommanderError) return explainUsage(error, argv);
  if (error instanceof UnsavedFailure) {
    const { next, ...cause } = explain(error.cause, argv);
    const kept = `your text is in ${error.file}`;
    return { ...cause, next: next === undefined ? kept : `${next}; ${kept}` };
  }
  const exitCode = error instanceof UsageFailure ? EXIT.usage : failureCode(argv);
  if (error instanceof Failure) {
    return { code: error.code, message: error.message, next: error.next, exitCode };
  }
  if (error instanceof BerthError) return { ...explainBerth(error), exitCode };
  const { code = 'failed', message } = error as NodeJS.ErrnoException;
  return { code, message, exitCode };
}

function explainBerth(error: BerthError): Omit<Explanation, 'exitCode'> {
  const { code, message } = error;
  if (error instanceof UnauthorizedError) {
    return { code, message: 'the API key is not valid', next: 'berth login sets another one' };
  }
  if (error instanceof ConnectionError) {
    return { code, message, next: 'berth doctor says what can be reached' };
  }
  if (code === 'sandbox_not_running') return { code, ...explainRest(message) };
  if (error instanceof ApiError && code === 'unknown') {
    const said = `what answered is not Berth (HTTP status ${error.status})`;
    return { code, message: said, next: 'see whether the URL of berth profile show is right' };
  }
  if (error instanceof CallTimeoutError) return { code, message, next: 'try again' };
  const isServers = error instanceof ApiError && error.status >= 500 && NEXT[code] === undefined;
  const next = isServers
    ? `the server's log has more under request ${error.requestId ?? 'unknown'}`
    : NEXT[code];
  if (code === 'bad_request') return { code, ...explainField(message) };
  return { code, message: IN_WORDS[code] ?? message, next };
}

const HELP_CODES: ReadonlySet<string> = new Set(['commander.help', 'commander.helpDisplayed']);

/** The words after which `--help` says what would be right. */
function helpedBy(error: CommanderError, [first = '', second = '']: readonly string[]): string[] {
  const entry = COMMANDS.find(({ name }) => name === first);
  if (entry === undefined) return [];
  const isCommand = entry.isGroup === true && /^[a-z][a-z-]*$/u.test(second);
  return isCommand && error.code !== 'commander.unknownCommand' ? [first, second] : [first];
}

function explainUsage(error: CommanderError, argv: readonly string[]): Explanation {
  if (HELP_CODES.has(error.code)) {
    return { code: 'usage', message: 'a command is missing', exitCode: EXIT.usage };
  }
  const message = error.message.replace(/^error: /u, '').replace(/\n\(?(.*?)\)?$/su, ' ($1)');
  const next = `see ${['berth', ...helpedBy(error, argv), '--help'].join(' ')}`;
  return { code: 'usage', message, next, exitCode: EXIT.usage };
}

/**
 * The exit code of a command that fails: not one that means something else to those who call it.
 */
function failureCode([group, name = '']: readonly string[]): number {
  if (group === 'disk' && name === 'grep') return EXIT.notSearched;
  const isRemotes =
    (group === 'sandbox' && ['run', 'shell', 'logs'].includes(name)) ||
    (group === 'disk' && name === 'exec');
  return isRemotes ? EXIT.notRun : EXIT.failure;
}
