import { AppError, toError } from '../../shared/errors.ts';
import type { ExecOutcome } from '../../shared/jobs.ts';
import type { Logger } from '../../shared/log.ts';
import type { Journal } from '../journal/journal.ts';
import {
  Container,
  type ContainerExit,
  type ContainerHost,
} from '../runtimes/container/container.ts';
import type { DiskActor, DiskClaim } from './disk-actor.ts';

export interface ExecSpec {
  readonly id: string;
  readonly requestId: string;
  readonly accountId: string;
  readonly diskId: string;
  readonly command: string;
  /** Milliseconds since the epoch. */
  readonly deadlineAt: number;
}

export interface ExecReport {
  readonly outcome: ExecOutcome;
  readonly stdout: Buffer;
  readonly stderr: Buffer;
}

export interface ExecActorDeps {
  readonly journal: Journal;
  readonly containers: ContainerHost;
  readonly log: Logger;
}

/**
 * One command, from the journal's intent to its last trace on the host. Its messages are
 * {@link run} (once) and {@link end} (any number, at any time; the first cause is kept).
 */
export class ExecActor {
  readonly #deps: ExecActorDeps;
  readonly #spec: ExecSpec;
  readonly #disk: DiskActor;
  readonly #container: Container;
  #ending: AppError | undefined;
  /** Settles when nothing of the exec is left on the host. */
  cleared: Promise<void> = Promise.resolve();

  constructor(deps: ExecActorDeps, spec: ExecSpec, disk: DiskActor) {
    this.#deps = deps;
    this.#spec = spec;
    this.#disk = disk;
    this.#container = new Container(deps.containers, spec.id);
  }

  /**
   * Runs the command. When it settles, no process of the command is left and the disk is free.
   * @throws AppError with the cause when the command was ended (`timeout`, `cancelled`, …)
   */
  async run(): Promise<ExecReport> {
    const { id, accountId, diskId, requestId, deadlineAt } = this.#spec;
    const remainingMs = deadlineAt - Date.now();
    if (remainingMs <= 0) throw new AppError('timeout', 'the command waited past its deadline');
    // Journal before host: a crash in between leaves a row that reclaim can find.
    const begunAt = new Date().toISOString();
    await this.#deps.journal.beginExec({ id, accountId, diskId, requestId, begunAt });
    const timer = setTimeout(() => {
      this.end(new AppError('timeout', 'the command timed out and was ended'));
    }, remainingMs);
    try {
      await using claim = await this.#claimDisk();
      return this.#report(await this.#runContainer(claim));
    } finally {
      clearTimeout(timer);
      this.#clearAway();
    }
  }

  /** Ends the command; {@link run} then throws the first cause given. */
  end(cause: AppError): void {
    if (this.#ending !== undefined) return;
    this.#ending = cause;
    this.#container
      .kill()
      .catch((error: unknown) => this.#deps.log.error({ err: error }, 'exec:killFailed'));
  }

  async #claimDisk(): Promise<DiskClaim & AsyncDisposable> {
    const claim = await this.#disk.claim();
    const revoke = (): void => this.end(claim.revoked.reason as AppError);
    claim.revoked.addEventListener('abort', revoke, { once: true });
    if (claim.revoked.aborted) revoke();
    return {
      ...claim,
      [Symbol.asyncDispose]: async () => {
        claim.revoked.removeEventListener('abort', revoke);
        claim.release();
      },
    };
  }

  async #runContainer(claim: DiskClaim): Promise<ContainerExit> {
    try {
      this.#throwIfEnded();
      const exit = await this.#container.run(this.#spec.command, claim.path);
      // Killed at the very end: the caller was promised the cause, not a result.
      this.#throwIfEnded();
      return exit;
    } catch (error) {
      this.#throwIfEnded();
      throw error instanceof AppError
        ? error
        : new AppError('internal_server_error', 'the command could not be started', {
            cause: error,
          });
    }
  }

  #throwIfEnded(): void {
    if (this.#ending !== undefined) throw this.#ending;
  }

  #report(exit: ContainerExit): ExecReport {
    const notes: string[] = [];
    const { stdout, stderr, outOfMemory } = exit;
    const [out, err] = [stdout.read(), stderr.read()];
    if (stdout.droppedBytes > 0) notes.push(cutNote('stdout', stdout.droppedBytes));
    if (stderr.droppedBytes > 0) notes.push(cutNote('stderr', stderr.droppedBytes));
    if (outOfMemory) {
      const mebibytes = Math.round(this.#deps.containers.limits.memoryBytes / 1024 ** 2);
      notes.push(`out of memory: the command may use ${mebibytes} MiB; processes were killed`);
    }
    const noteText = notes.map((note) => `\nberth: ${note}\n`).join('');
    return {
      outcome: {
        exitCode: exit.exitCode,
        executeMs: Math.round(exit.endedAt - exit.startedAt),
        endMs: Math.round(performance.now() - exit.endedAt),
      },
      stdout: out,
      stderr: noteText === '' ? err : Buffer.concat([err, Buffer.from(noteText)]),
    };
  }

  /** After the answer: the files in memory and the journal's row, in this order. */
  #clearAway(): void {
    this.cleared = (async () => {
      try {
        await this.#container.dispose();
        await this.#deps.journal.endExec(this.#spec.id);
      } catch (error) {
        // The row stays, and the next start reclaims what is left.
        this.#deps.log.error({ err: toError(error), execId: this.#spec.id }, 'exec:notCleared');
      }
    })();
  }
}

const cutNote = (stream: string, bytes: number): string =>
  `${stream} was cut: its first ${bytes} bytes were dropped, the last 16 MiB are kept`;
