import { posix } from 'node:path';
import { runInBackground } from '../../shared/background.ts';
import { AppError, toError } from '../../shared/errors.ts';
import type { ExecMount } from '../../shared/jobs/command-kinds.ts';
import type { Logger } from '../../shared/log.ts';
import { inSpan } from '../../shared/spans.ts';
import { onBehalfOf } from '../disks/disk-threads.ts';
import type { Journal } from '../system/journal/journal.ts';
import {
  closeTails,
  type Container,
  type ContainerExit,
  type ContainerMount,
} from './container.ts';
import type { ContainerCommand } from './init-channel.ts';
import type { ContainerPool } from './container-pool.ts';
import type { OutputSink } from './output-tail.ts';
import type { Checkout } from '../disks/checkout-target.ts';
import type { DiskActor } from '../disks/disk-actor.ts';
import type { DiskClaim } from '../disks/disk-claims.ts';
import type { FairTurns, Turn } from '../system/queues/fair-turns.ts';
import { failpoint } from '../system/failpoint.ts';

export interface CommandSpec {
  readonly id: string;
  readonly requestId: string;
  readonly accountId: string;
  readonly mounts: readonly ExecMount[];
  /** Called when the container is ready, so that the command line can contain the time left. */
  readonly command: () => ContainerCommand;
  /** Milliseconds since the epoch. */
  readonly deadlineAt: number;
  /** Mounts the disks read-only, without execution and without following links on them. */
  readonly dataOnly?: boolean;
  /** Receives stdout while the command runs; without it, the last part is kept for the end. */
  readonly output?: OutputSink;
}

export interface CommandActorDeps {
  readonly journal: Journal;
  readonly pool: ContainerPool;
  readonly turns: FairTurns;
  readonly log: Logger;
}

/**
 * Runs one command in a container: journals the intent, runs the command, and clears everything it
 * left on the host. Call {@link run} once. {@link end} may be called at any time and repeatedly;
 * the error of the first call is the one that the command ends with.
 */
export class CommandActor {
  readonly #deps: CommandActorDeps;
  readonly #spec: CommandSpec;
  /** The disks of the spec's mounts, by id. */
  readonly #disks: ReadonlyMap<string, DiskActor>;
  readonly #claims = new Map<string, DiskClaim>();
  #container: Container | undefined;
  /** Whether the container has been given the command: before, nothing of it has run. */
  #isGiven = false;
  #ending: AppError | undefined;
  readonly #ended = new AbortController();
  /** Settles when the command's row is durable, where it has to be, or the command is ended. */
  #durable: Promise<void> = Promise.resolve();
  /** Settles when nothing of the command is left on the host. Set once {@link run} has ended. */
  cleared: Promise<void> = Promise.resolve();

  constructor(deps: CommandActorDeps, spec: CommandSpec, disks: ReadonlyMap<string, DiskActor>) {
    this.#deps = deps;
    this.#spec = spec;
    this.#disks = disks;
  }

  /** Whether a container was taken for the command. */
  get hasContainer(): boolean {
    return this.#container !== undefined;
  }

  get writesToDisks(): boolean {
    return this.#spec.dataOnly !== true;
  }

  /**
   * Runs the command. When this settles, no process of the command is left and its disks are
   * released.
   * @param onBegun called when the command's turn has come; after that its outcome may be unknown
   * @throws AppError the cause when the command was ended (`timeout`, `cancelled`, …);
   *   `unavailable` when that was before anything of it ran
   */
  async run(onBegun: () => void): Promise<ContainerExit> {
    const { id, accountId, requestId, deadlineAt } = this.#spec;
    const remainingMs = deadlineAt - Date.now();
    if (remainingMs <= 0)
      throw new AppError(
        'timeout',
        'the deadline passed while the command waited in the queue; it was not begun',
      );
    const timer = setTimeout(() => {
      this.end(new AppError('timeout', 'the command timed out and was ended'));
    }, remainingMs);
    let turn: Turn | undefined;
    try {
      turn = await inSpan({ name: 'turn.wait' }, () =>
        this.#deps.turns.acquire(accountId, this.#ended.signal),
      );
      onBegun();
      // The journal comes first: a crash after it leaves a row that reclaim finds.
      const begunAt = new Date().toISOString();
      const diskIds = [...this.#disks.keys()];
      await inSpan({ name: 'journal.begin' }, () =>
        this.#deps.journal.beginExec({ id, accountId, diskIds, requestId, begunAt }),
      );
      // A search may be repeated: nobody has to know of it after the host's crash.
      if (this.writesToDisks) this.#durable = this.#endUnlessDurable();
      return await onBehalfOf(accountId, this.#ended.signal, async () =>
        this.#runInContainer(await inSpan({ name: 'disk.claim' }, () => this.#claimDisks())),
      );
    } catch (error) {
      await this.#durable;
      this.#throwIfEnded();
      throw error;
    } finally {
      clearTimeout(timer);
      for (const claim of this.#claims.values()) claim.release();
      turn?.release();
      this.#clearAway();
    }
  }

  /** Ends the command; {@link run} then throws the first cause that was given. */
  end(cause: AppError): void {
    if (this.#ending !== undefined) return;
    this.#ending = cause;
    this.#ended.abort(cause);
    runInBackground('container.kill', () => this.#container?.kill());
  }

  /**
   * The command runs while its row becomes durable, and nobody is told of its end before
   * (docs/decisions/0096). Never throws: a sync that fails ends the command.
   */
  async #endUnlessDurable(): Promise<void> {
    const { journal } = this.#deps;
    try {
      await inSpan({ name: 'journal.sync' }, () => failpoint('sync exec', () => journal.durable()));
    } catch (cause) {
      const message = 'the host could not record that the command had begun, and ended it';
      this.end(new AppError('outcome_unknown', message, { cause }));
    }
  }

  /** Claims every disk or none: when one claim fails, {@link run} releases the others. */
  async #claimDisks(): Promise<ContainerMount[]> {
    // Claims and checkouts go in the order of disk ids, so that two execs with the same disks
    // cannot each hold what the other waits for.
    for (const [diskId, disk] of [...this.#disks].sort(([a], [b]) => (a < b ? -1 : 1))) {
      this.#throwIfEnded();
      const claim = await disk.claim(this.#spec.id, (reason) => this.end(reason));
      this.#claims.set(diskId, claim);
    }
    const mounts = this.#spec.mounts.map((mount) => ({ mount, claim: this.#claimOn(mount) }));
    for (const [diskId, claim] of this.#claims) {
      const checkouts = this.#spec.mounts
        .filter((mount) => mount.diskId === diskId)
        .flatMap(checkoutsOf);
      if (checkouts.length > 0) await claim.checkOut(checkouts, this.#ended.signal);
    }
    const { dataOnly = false } = this.#spec;
    return mounts.map(({ mount: { path, subdirectory, readOnly }, claim }) => ({
      path,
      subdirectory,
      readOnly,
      dataOnly,
      diskPath: claim.path,
    }));
  }

  #claimOn({ diskId }: ExecMount): DiskClaim {
    const claim = this.#claims.get(diskId);
    if (claim === undefined) throw new Error(`disk ${diskId} was not claimed`);
    return claim;
  }

  async #runInContainer(mounts: readonly ContainerMount[]): Promise<ContainerExit> {
    this.#throwIfEnded();
    this.#container = await inSpan({ name: 'container.take' }, () =>
      this.#deps.pool.take(this.#ended.signal),
    );
    // The command was ended just as it got the container.
    if (this.#ending !== undefined) {
      runInBackground('container.kill', () => this.#container?.kill());
      this.#throwIfEnded();
    }
    const { command, output } = this.#spec;
    const container = this.#container;
    const given = (): ContainerCommand => {
      this.#isGiven = true;
      return command();
    };
    const exit = await inSpan({ name: 'container.run' }, async (span) => {
      const end = await container.run(given, mounts, output);
      span.set({ 'berth.exit_code': end.exitCode });
      return end;
    });
    if (!container.leavesOpen) for (const claim of this.#claims.values()) claim.closed();
    await this.#settleDisks(exit);
    await this.#durable;
    // When the command was ended just as it finished, the caller gets the cause and not a result.
    if (this.#ending !== undefined) await closeTails(exit.stdout, exit.stderr);
    this.#throwIfEnded();
    return exit;
  }

  /** Waits until written data is where its owner wants it, or the command must end. */
  async #settleDisks({ stdout, stderr }: ContainerExit): Promise<void> {
    if (!this.writesToDisks) return;
    const { signal } = this.#ended;
    const ended = new Promise<void>((resolve) => {
      signal.addEventListener('abort', () => resolve(), { once: true });
      if (signal.aborted) resolve();
    });
    const written = this.#spec.mounts.filter(({ readOnly }) => !readOnly);
    const claims = new Set(written.map((mount) => this.#claimOn(mount)));
    const settled = Promise.all([...claims].map((claim) => claim.settle()));
    try {
      await Promise.race([settled, ended]);
    } catch (error) {
      await closeTails(stdout, stderr);
      throw error;
    } finally {
      settled.catch(() => undefined); // When the command was ended first.
    }
  }

  #throwIfEnded(): void {
    if (this.#ending === undefined) return;
    // A search may be repeated in any case, and its deadline is an end like any other.
    throw this.#isGiven || !this.writesToDisks ? this.#ending : notBegun(this.#ending);
  }

  /** Removes the container and then the journal row, without holding up the answer. */
  #clearAway(): void {
    this.cleared = (async () => {
      try {
        await this.#container?.gone;
        await this.#deps.journal.endExec(this.#spec.id);
      } catch (error) {
        // The row stays, so the next start of the agent reclaims what is left.
        this.#deps.log.error({ err: toError(error), execId: this.#spec.id }, 'exec:cleanupFailed');
      }
    })();
  }
}

/** The error for a command that was ended before anything of it ran: its caller may repeat it. */
function notBegun(cause: AppError): AppError {
  const { code, message } = cause;
  if (code === 'timeout') {
    const tooLate = 'the deadline passed before the command could begin; try again';
    return new AppError('unavailable', tooLate, { cause });
  }
  if (code !== 'outcome_unknown') return cause;
  return new AppError('unavailable', `${message}; the command had not begun; try again`, { cause });
}

const checkoutsOf = ({ subdirectory, checkouts, checkoutWaitMs }: ExecMount): Checkout[] =>
  checkouts.map((path) => ({
    path: posix.join(subdirectory, path).replace(/^\.$/u, ''),
    waitMs: checkoutWaitMs,
  }));
