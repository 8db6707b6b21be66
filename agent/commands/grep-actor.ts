import { AppError, toError } from '../../shared/errors.ts';
import type { GrepOutcome } from '../../shared/jobs/command-kinds.ts';
import { TOOLS } from '../machines/oci/bundle.ts';
import { closeTails, type ContainerExit } from './container.ts';
import type { ContainerCommand } from './init-channel.ts';
import { CommandActor, type CommandActorDeps } from './command-actor.ts';
import type { DiskActor } from '../disks/disk-actor.ts';
import { readPattern, type SearchPattern } from './pattern.ts';
import { SearchOutput } from './search-output.ts';
import { MiB } from '../../shared/units.ts';

/** The search program ends itself at its deadline; if it does not, it is ended this much later. */
const END_GRACE_MS = 150;

export interface GrepSpec {
  readonly id: string;
  readonly requestId: string;
  readonly accountId: string;
  readonly diskId: string;
  /** From the disk's root; empty: the root. */
  readonly directory: string;
  /** The pattern as GNU `grep -E` takes it. */
  readonly pattern: string;
  readonly recursive: boolean;
  /** How many workers the caller allows at once. */
  readonly concurrency: number;
  readonly maxResults: number;
  /** Milliseconds since the epoch. */
  readonly deadlineAt: number;
  /** Receives matches as they are found, as JSON arrays. The report does not repeat them. */
  readonly onMatches?: (matches: Buffer) => void;
}

export interface GrepReport {
  readonly outcome: GrepOutcome;
  /** A JSON array of the matches that were not passed to `onMatches`. */
  readonly matches: Buffer;
}

export interface GrepActorDeps extends CommandActorDeps {
  /** The memory limit of a search, for the note that it ran out of memory. */
  readonly memoryBytes: number;
  /** How many workers this host allows one search. */
  readonly searchWorkers: number;
}

/** A program's complaint without the name of the program in front. */
const reasonOf = (problem = ''): string => problem.replace(/^\S*grep: /u, '');

/**
 * Runs one search in a container with the directory mounted read-only, where the search program
 * splits the files among rg processes, or grep processes when rg cannot express the pattern
 * (docs/decisions/0012). When some fail, the search still answers with the matches of the others.
 */
export class GrepActor {
  readonly command: CommandActor;
  readonly #deps: GrepActorDeps;
  readonly #spec: GrepSpec;
  readonly #pattern: SearchPattern;
  readonly #output: SearchOutput;

  /** @throws AppError `bad_request` when the pattern has what `grep -E` has no meaning for */
  constructor(deps: GrepActorDeps, spec: GrepSpec, disks: ReadonlyMap<string, DiskActor>) {
    const { id, requestId, accountId, diskId, directory, maxResults, deadlineAt, onMatches } = spec;
    this.#deps = deps;
    this.#spec = spec;
    this.#pattern = readPattern(spec.pattern);
    this.#output = new SearchOutput({
      prefix: directory === '' ? '' : `${directory}/`,
      maxResults,
      onMatches,
      onClosed: () => this.command.end(new AppError('cancelled', 'enough matches were found')),
    });
    const mount = { diskId, path: '', subdirectory: directory, readOnly: true };
    const command = {
      id,
      requestId,
      accountId,
      mounts: [{ ...mount, checkouts: [], checkoutWaitMs: 0 }],
      command: () => this.#commandLine(),
      deadlineAt: deadlineAt + END_GRACE_MS,
      dataOnly: true,
      output: this.#output,
    };
    this.command = new CommandActor(deps, command, disks);
  }

  /**
   * Searches. A deadline that passes, a missing directory and workers that fail are not errors but
   * reasons in the outcome.
   * @throws AppError `bad_request` when the pattern is not valid; others when the search was ended
   *   from outside or could not begin: it may be repeated
   */
  async run(onBegun: () => void): Promise<GrepReport> {
    try {
      await this.#noteExit(await this.command.run(onBegun));
    } catch (error) {
      this.#noteFailure(toError(error));
    }
    const { statistics, problem, reason = 'incomplete', isPatternRefused } = this.#output;
    if (isPatternRefused) throw new AppError('bad_request', `pattern: ${reasonOf(problem)}`);
    const outcome: GrepOutcome = {
      stoppedReason: reason,
      filesScanned: statistics.filesScanned,
      containersDispatched: this.command.hasContainer ? 1 : 0,
      computeSecondsUsed: statistics.computeUs / 1e6,
      listingMs: Math.round(statistics.listingUs / 1000),
      grepMs: Math.round(statistics.grepUs / 1000),
      ...(problem === undefined ? {} : { message: problem }),
    };
    return { outcome, matches: this.#output.takeMatches() };
  }

  #commandLine(): ContainerCommand {
    const { recursive, concurrency, maxResults, deadlineAt } = this.#spec;
    const { rg = '', gnu, ignoresCase, required, isText, needsTrial } = this.#pattern;
    const workers = Math.min(concurrency, this.#deps.searchWorkers);
    const leftMs = Math.max(0, deadlineAt - Date.now());
    const flags = [ignoresCase, needsTrial, isText].map(Number);
    const numbers = [Number(recursive), workers, maxResults, leftMs, ...flags].map(String);
    return [`${TOOLS}/search`, TOOLS, ...numbers, rg, gnu, required];
  }

  async #noteExit({ exitCode, outOfMemory, stdout, stderr }: ContainerExit): Promise<void> {
    const mebibytes = Math.round(this.#deps.memoryBytes / MiB);
    const complaint = (await stderr.read()).toString('utf8').slice(-500);
    await closeTails(stdout, stderr);
    const cause = outOfMemory
      ? `out of memory: a search may use ${mebibytes} MiB`
      : `the search program ended with ${exitCode}: ${complaint}`;
    this.#output.end('incomplete', cause); // Has no effect when the program reported its end itself.
  }

  #noteFailure(error: Error): void {
    const code = error instanceof AppError ? error.code : undefined;
    if (code === 'timeout') this.#output.end('deadline');
    // Only mounting the directory is refused with this code.
    else if (code === 'bad_request') this.#output.end('list_failed', error.message);
    else if (code === 'outcome_unknown') {
      throw new AppError('unavailable', 'the host ended the search; try again', { cause: error });
    } else if (this.#output.reason === undefined) throw error;
  }
}
