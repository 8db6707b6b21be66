import type { GuestProcessRecord } from '../../machines/guest-link/guest-protocol.ts';
import { PROCESS_FLAGS } from '../../machines/guest-link/guest-protocol.ts';
import { toError } from '../../../shared/errors.ts';
import type { Logger } from '../../../shared/log.ts';
import type { SandboxExecStatus } from '../../../shared/schemas/sandbox-record.ts';
import { timerMs } from '../../../shared/units.ts';
import type { SandboxExecState } from '../../system/journal/sandbox-journal.ts';
import type { GuestChannel } from '../../machines/guest-link/guest-channel.ts';
import { GuestFailure } from '../../machines/guest-link/guest-errors.ts';
import type { GuestOutput } from '../../machines/guest-link/guest-types.ts';
import { endOfProcess, type ProcessEnd } from '../../machines/guest-link/process-end.ts';
import { SerialQueue } from '../../system/queues/serial-queue.ts';
import { failpoint } from '../../system/failpoint.ts';
import type { ExecOutput } from './exec-output.ts';
import type { ExecRecords } from './exec-records.ts';

const SIGKILL = 9;
// Shells add the signal's number to this for the exit code of a process that a signal ended.
const SIGNAL_EXIT_CODE = 128;

/** How long after a failed write to the journal a timeout is tried again. */
const RETRY_MS = 1_000;

/** Times of ending are rounded to milliseconds, by two clocks. */
const CLOCK_ERROR_MS = 10;

const REASONS = { cancelled: 'cancelled', timed_out: 'timed out' } as const;

/** How a command begins. */
export interface ExecStart {
  readonly command: string;
  readonly environment: Readonly<Record<string, string>>;
  readonly hasTerminal: boolean;
}

/**
 * A command that runs in a sandbox, from its row in the journal to its end. It outlives channels
 * and agents: the guest keeps it, and every new channel continues where its output left off.
 */
export class SandboxExec {
  readonly #records: ExecRecords;
  readonly #output: ExecOutput;
  readonly #log: Logger;
  #row: SandboxExecState;
  #channel: GuestChannel | undefined;
  #exit: ProcessEnd | undefined;
  /** Why the sandbox is about to end it, if it is. */
  #expected: string | undefined;
  #isFinishing = false;
  /** How to start it, as long as the guest has not answered whether it started. */
  #unanswered: ExecStart | undefined;
  #timer: NodeJS.Timeout | undefined;
  /** The guest's messages, handled in order: output is appended before the end is written. */
  readonly #messages = new SerialQueue();
  readonly #settled = Promise.withResolvers<SandboxExecState>();

  constructor(records: ExecRecords, output: ExecOutput, row: SandboxExecState, log: Logger) {
    this.#records = records;
    this.#output = output;
    this.#row = row;
    this.#log = log;
    this.#watchTime();
  }

  get row(): SandboxExecState {
    return this.#row;
  }

  /** Settles with its last row once that is in the journal. */
  get ended(): Promise<SandboxExecState> {
    return this.#settled.promise;
  }

  /**
   * Starts the command in the guest. Resolves when it runs or could not be started. When the
   * channel breaks first, the next channel reports the command as running, or starts it.
   */
  async start(channel: GuestChannel, start: ExecStart): Promise<void> {
    const { id } = this.#row;
    const { command, environment, hasTerminal } = start;
    this.#channel = channel;
    this.#unanswered = start;
    try {
      await failpoint('start exec', () =>
        channel.start({
          id,
          command,
          environment,
          directory: '',
          user: '',
          terminal: hasTerminal ? { columns: 80, rows: 24 } : undefined,
          stdin: false,
          isFollowed: true,
          isAttachable: false,
          timeoutMs: undefined, // The journal keeps when its time is up.
        }),
      );
      this.#unanswered = undefined;
    } catch (error) {
      if (error instanceof GuestFailure || error instanceof RangeError) {
        this.#unanswered = undefined;
        await this.#finish('failed', `it could not be started: ${error.message}`);
      } else {
        channel.close(); // The next channel tells whether it runs.
      }
    }
  }

  /** Continues over a new channel; `record` is what the guest knows of it. */
  async adopt(channel: GuestChannel, record: GuestProcessRecord | undefined): Promise<void> {
    this.#channel = channel;
    if (this.#row.status !== 'running') return; // The command ended while others were taken up.
    if (record === undefined) return this.#beginAgain(channel);
    this.#unanswered = undefined;
    if ((record.flags & PROCESS_FLAGS.exited) !== 0) {
      this.#exit = endOfProcess(record);
    } else if (this.#row.ending !== undefined) {
      await channel.signal(this.#row.id, SIGKILL);
    }
    // The end may have been told since the record was.
    if (this.#exit === undefined || this.#output.end < this.#exit.end) {
      await channel.follow(this.#row.id, this.#output.end);
    }
    await this.#finishIfDrained();
  }

  receiveOutput(channel: GuestChannel, { stream, offset, bytes }: GuestOutput): void {
    const copy = Buffer.from(bytes); // The channel's own buffer is used again.
    this.#handle(async () => {
      await this.#output.append(stream, offset, copy);
      channel.acknowledge(this.#row.id, this.#output.end);
      await this.#finishIfDrained();
    });
  }

  receiveExit(exit: ProcessEnd): void {
    this.#exit = exit;
    this.#handle(() => this.#finishIfDrained());
  }

  /** Kills it; its status will be this, whatever it does until then. */
  async end(ending: 'cancelled' | 'timed_out'): Promise<void> {
    if (this.#row.ending === undefined && this.#row.status === 'running') {
      const row = { ...this.#row, ending };
      await failpoint('journal exec ending', () => this.#records.save(row));
      if (this.#row.status === 'running') this.#row = { ...this.#row, ending };
    }
    // Without a channel the next one kills it.
    await this.#channel?.signal(this.#row.id, SIGKILL).catch(() => undefined);
  }

  /** The sandbox is about to stop or pause: however it ends from here on, that is why. */
  expectEnd(why: string): void {
    this.#expected = why;
  }

  /**
   * Ends it as lost: its machine is gone, and with it any output that had not arrived.
   * @param endedAt when the machine ended, in milliseconds since the epoch
   */
  async lose(status: SandboxExecStatus, reason: string, endedAt = Date.now()): Promise<void> {
    await this.#messages.idle;
    await this.#finish(this.#row.ending ?? status, reason, { endedAt });
  }

  /** Stops following it; the command runs on. */
  async detach(): Promise<void> {
    clearTimeout(this.#timer);
    this.#channel = undefined;
    await this.#messages.idle;
    clearTimeout(this.#timer); // A message that was being handled may have set it again.
    await this.#output.close();
  }

  /**
   * The guest does not know it. It keeps a command until it is told to forget it, so one that it
   * was asked to start and has not answered for was never started.
   */
  async #beginAgain(channel: GuestChannel): Promise<void> {
    const { ending } = this.#row;
    if (ending !== undefined) await this.#finish(ending, REASONS[ending]);
    else if (this.#expected !== undefined) await this.#finish('cancelled', this.#expected);
    else if (this.#unanswered !== undefined) await this.start(channel, this.#unanswered);
    else await this.#finish('failed', 'the sandbox no longer knows the command');
  }

  async #finishIfDrained(): Promise<void> {
    const exit = this.#exit;
    if (exit === undefined || this.#output.end < exit.end) return;
    const exitCode = exit.exitCode ?? SIGNAL_EXIT_CODE + (exit.signal ?? 0);
    const how = exit.signal === undefined ? `exit code ${exitCode}` : `signal ${exit.signal}`;
    const expected = this.#expected;
    const ending = this.#endedInTime(exit) ? undefined : this.#row.ending;
    const end = { exitCode, endedAt: exit.endedAt };
    if (ending === 'timed_out') await this.#finish(ending, REASONS[ending], end);
    else if (expected !== undefined) await this.#finish('cancelled', expected, end);
    else if (ending !== undefined) await this.#finish(ending, REASONS[ending], end);
    else await this.#finish('completed', how, end);
    await this.#channel?.forget(this.#row.id).catch(() => undefined);
  }

  /** Its time ran out while no agent was there, but it had ended before. */
  #endedInTime({ endedAt }: ProcessEnd): boolean {
    const { ending, timeoutAt } = this.#row;
    return ending === 'timed_out' && endedAt < (timeoutAt ?? 0) - CLOCK_ERROR_MS;
  }

  async #finish(
    status: SandboxExecStatus,
    exitReason: string,
    { exitCode, endedAt }: { exitCode?: number; endedAt?: number } = {},
  ): Promise<void> {
    if (this.#row.status !== 'running' || this.#isFinishing) return;
    this.#isFinishing = true;
    clearTimeout(this.#timer);
    const row: SandboxExecState = {
      ...this.#row,
      status,
      exitReason,
      ...(exitCode === undefined ? {} : { exitCode }),
      ...this.#timesOf(endedAt ?? Date.now()),
      droppedBytes: this.#output.droppedBytes,
    };
    try {
      // Sync the output first: another host may take over this record and read the file.
      if (this.#records.areHandedOver) await this.#output.sync();
      await failpoint('journal exec end', () => this.#records.save(row));
    } finally {
      this.#isFinishing = false;
    }
    this.#row = row;
    await this.#output.close();
    this.#settled.resolve(row);
  }

  /** A guest may tell any time: it counts only between the command's start and now. */
  #timesOf(endedAt: number): Pick<SandboxExecState, 'finishedAt' | 'executeTimeMs'> {
    const startedAt = Date.parse(this.#row.startedAt);
    const finishedAt = Math.max(startedAt, Math.min(endedAt, Date.now()));
    return {
      finishedAt: new Date(finishedAt).toISOString(),
      executeTimeMs: finishedAt - startedAt,
    };
  }

  #handle(action: () => Promise<void>): void {
    this.#messages.add(action).catch((error: unknown) => {
      this.#log.error({ execId: this.#row.id, err: toError(error) }, 'sandboxExec:failed');
      // Output that was not written was not acknowledged: it comes again over the next channel.
      this.#channel?.close();
    });
  }

  #watchTime(msMin = 0): void {
    const { timeoutAt } = this.#row;
    if (timeoutAt === undefined) return;
    const remainingMs = timerMs(Math.max(timeoutAt - Date.now(), msMin));
    this.#timer = setTimeout(() => this.#handle(() => this.#timeOut()), remainingMs);
    this.#timer.unref();
  }

  /** Retried when it fails: otherwise the command would run on without a limit. */
  async #timeOut(): Promise<void> {
    try {
      await this.end('timed_out');
    } catch (error) {
      this.#watchTime(RETRY_MS);
      throw error;
    }
  }
}
