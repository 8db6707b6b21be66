import {
  CallTimeoutError,
  ConnectionError,
  type Disk,
  type ExecResult,
  type GrepMatch,
  type GrepResult,
} from '@berth/sdk';
import { leaf } from '../command.ts';
import { opened } from '../context.ts';
import { EXIT, Failure, UsageFailure } from '../failure.ts';
import { findDisk } from '../find.ts';
import { type Output, paint } from '../output.ts';
import { commandBehindName, commandLine } from '../quote.ts';
import { visible } from '../text.ts';
import { count, given } from '../values.ts';

/**
 * Runs a command without an Idempotency-Key: with one it would go on when the user ends us with
 * Ctrl-C.
 * @throws Failure when the answer is lost, which cannot be asked for again
 */
async function runOn(disk: Disk, command: string): Promise<ExecResult> {
  try {
    return await disk.exec(command, { idempotencyKey: false });
  } catch (error) {
    if (!(error instanceof ConnectionError || error instanceof CallTimeoutError)) throw error;
    const next = 'look whether the command was run before you repeat it';
    throw new Failure(error.message, next, error.code);
  }
}

export const execCommand = () =>
  leaf('exec')
    .summary('run a command on a disk')
    .description(
      `Run a command on a disk and end with its exit code. Its output comes when it has ended.

One word is a command line for bash; several are a program and its arguments.`,
    )
    .argument('<disk>', 'its name or id')
    .argument('[command...]', 'one word for bash, or a program and its arguments')
    .usage('[options] <disk> -- <command...>')
    .passThroughOptions()
    .action(async (name, all, options) => {
      const words = commandBehindName(all);
      if (words.length === 0) {
        throw new UsageFailure('a command is missing', 'write berth disk exec work -- ls -l');
      }
      const { output, berth } = await opened(options);
      const disk = await findDisk(berth, name);
      const result = await output.during('running', () => runOn(disk, commandLine(words)));
      if (output.isJson) output.json(result);
      else {
        process.stdout.write(result.stdout);
        process.stderr.write(result.stderr);
      }
      process.exitCode = result.exitCode;
    });

/** Reasons for which a search did not see everything. */
const PARTIAL: Readonly<Record<string, string>> = {
  max_results: 'stopped at the highest number of results: --max finds more',
  deadline: 'stopped at the time limit: search a smaller directory',
  incomplete: 'some of it could not be searched',
  list_failed: 'the directory could not be read',
};

const FOUND_NOTHING = 1;

function printMatches(output: Output, matches: readonly GrepMatch[]): void {
  for (const { file, line, text } of matches) {
    const place = output.isQuiet ? '' : `${paint('magenta', visible(file))}:${line}:`;
    output.text(output.isQuiet ? `${visible(file)}\n` : `${place}${visible(text)}\n`);
  }
}

/** Says why a search did not see everything. */
function notePartial(output: Output, { stoppedReason, message }: GrepResult): void {
  const why = PARTIAL[stoppedReason];
  if (why !== undefined) output.note(message === undefined ? why : `${why}: ${message}`);
}

/** The exit code, as grep has it. */
function codeOf({ matches, stoppedReason }: GrepResult): number {
  if (stoppedReason === 'list_failed') return EXIT.notSearched;
  return matches.length > 0 ? 0 : FOUND_NOTHING;
}

export const grepCommand = () =>
  leaf('grep')
    .summary('search the files of a disk')
    .description(
      'Search the files of a disk for an extended regular expression, in parallel. Ends with 1 when nothing was found, 2 when the search failed.',
    )
    .argument('<disk>', 'its name or id')
    .argument('<pattern>', 'as grep -E takes it; (?i) in front ignores case')
    .argument('[directory]', 'where to search', '/')
    .option('--no-recursive', 'only the files directly in the directory')
    .option('--max <n>', 'stop after so many results; default 1000', count)
    .action(async (name, pattern, directory, { recursive, max, ...options }) => {
      const { output, berth } = await opened(options);
      const disk = await findDisk(berth, name);
      const search = { directory, pattern, recursive, ...given({ maxResults: max }) };
      if (output.isJson) {
        const result = await output.during('searching', () => disk.grep(search));
        output.json(result);
        process.exitCode = codeOf(result);
        return;
      }
      const onMatches = (matches: GrepMatch[]): void => printMatches(output, matches);
      const result = await disk.grep(search, { onMatches });
      notePartial(output, result);
      process.exitCode = codeOf(result);
    });
