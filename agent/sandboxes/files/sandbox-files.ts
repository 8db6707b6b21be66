import { randomUUID } from 'node:crypto';
import { runInBackground } from '../../../shared/background.ts';
import { AppError, toError } from '../../../shared/errors.ts';
import { SANDBOX_LIMITS } from '../limits.ts';
import { settledWithin } from '../../../shared/settled-within.ts';
import type { FileOperation } from '../../../shared/links/files-protocol.ts';
import type { GuestChannel } from '../../machines/guest-link/guest-channel.ts';
import { guestSilent } from '../../machines/guest-link/guest-errors.ts';
import type { GuestLink } from '../../machines/guest-link/guest-link.ts';
import { whenThawed } from '../../machines/guest-link/when-thawed.ts';
import { encodeOperation, type MoreAsked } from './file-records.ts';
import { FileWorker } from './file-worker.ts';
import { notRunning, toFilesError } from './files-error.ts';

const END_AWAITED_MS = 200;

/** The operations on files that run in one sandbox. They end with the channel that began them. */
export class SandboxFiles {
  readonly #workers = new Map<string, FileWorker>();
  readonly #counts = { transfer: 0, watch: 0 };
  #link: GuestLink | undefined;
  #isRefusing = false;
  #hold: () => () => void = () => () => undefined;

  /** @param hold called when an operation begins; what it returns, when it has ended */
  holdBy(hold: () => () => void): void {
    this.#hold = hold;
  }

  connect(link: GuestLink): void {
    this.#link = link;
    this.#isRefusing = false;
    const opened = (channel: GuestChannel): void => this.#listen(channel);
    link.on('opened', opened);
    if (link.channel !== undefined) opened(link.channel);
  }

  /** Ends all operations, and refuses those that come, until `acceptAgain` or `connect`. */
  release(why: string): void {
    this.#isRefusing = true;
    const reason = new AppError('sandbox_not_running', why);
    for (const worker of this.#workers.values()) worker.fail(reason);
  }

  acceptAgain(): void {
    this.#isRefusing = false;
  }

  /** The machine is gone, or goes on without this agent. */
  disconnect(): void {
    this.#link = undefined;
    this.release('the sandbox does not run any more');
    this.#workers.clear();
  }

  /**
   * Begins an operation.
   * @throws AppError `sandbox_not_running`, `rate_limited`, `unavailable`, `no_capacity`,
   *   `not_enabled` when the guest is older than this
   */
  async begin(
    operation: FileOperation,
    more: MoreAsked = {},
  ): Promise<FileWorker & AsyncDisposable> {
    const release = this.#takePermit(operation);
    try {
      const channel = await this.#channel();
      const worker = new FileWorker(randomUUID(), channel);
      this.#workers.set(worker.id, worker);
      const signal = AbortSignal.timeout(SANDBOX_LIMITS.guestAnswerMsMax);
      const encoded = encodeOperation(operation, more);
      try {
        await whenThawed(() => channel.startFiles(worker.id, encoded), signal);
      } catch (error) {
        this.#workers.delete(worker.id);
        throw error;
      }
      return Object.assign(worker, { [Symbol.asyncDispose]: () => this.#end(worker, release) });
    } catch (error) {
      release();
      // The channel breaks when the sandbox stops: that is no fault of the guest.
      throw this.#isRefusing ? notRunning() : toFilesError(error);
    }
  }

  /**
   * The permit is taken until the guest has forgotten the operation. One that is done ends at once,
   * and its caller waits for that, so that the next request finds the permit; nobody waits for one
   * that was cut for longer.
   */
  async #end(worker: FileWorker, release: () => void): Promise<void> {
    const ended = worker.end().finally(() => {
      this.#workers.delete(worker.id);
      release();
    });
    if (!(await settledWithin(ended, END_AWAITED_MS))) {
      runInBackground('sandboxFiles.end', () => ended);
    }
  }

  #takePermit({ type }: FileOperation): () => void {
    if (this.#link === undefined || this.#isRefusing) throw notRunning();
    const kind = type === 'watch' ? 'watch' : 'transfer';
    const max =
      kind === 'watch' ? SANDBOX_LIMITS.watchesPerSandboxMax : SANDBOX_LIMITS.filesPerSandboxMax;
    if (this.#counts[kind] >= max) {
      const message = `the sandbox has ${max} requests of this kind, as many as it may; try again`;
      throw new AppError('rate_limited', message);
    }
    this.#counts[kind] += 1;
    // Somebody who only looks does not use the sandbox.
    const letIdle = kind === 'watch' ? () => undefined : this.#hold();
    let isHeld = true;
    return () => {
      if (!isHeld) return;
      isHeld = false;
      this.#counts[kind] -= 1;
      letIdle();
    };
  }

  async #channel(): Promise<GuestChannel> {
    const link = this.#link;
    if (link === undefined) throw notRunning();
    if (link.channel !== undefined) return link.channel;
    return link
      .opened(AbortSignal.timeout(SANDBOX_LIMITS.guestAnswerMsMax))
      .catch((error: unknown) => {
        throw guestSilent(error);
      });
  }

  #listen(channel: GuestChannel): void {
    channel.on('output', (output) => this.#workers.get(output.processId)?.receiveOutput(output));
    channel.on('exited', (exit) => this.#workers.get(exit.processId)?.receiveExit(exit));
    channel.on('closed', (error) => {
      const reason = guestSilent(error === undefined ? undefined : toError(error));
      for (const worker of this.#workers.values()) {
        if (worker.channel === channel) worker.fail(reason);
      }
    });
  }
}
