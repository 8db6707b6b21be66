import { rm } from 'node:fs/promises';
import { runInBackground } from '../../../shared/background.ts';
import { AppError, toError } from '../../../shared/errors.ts';
import {
  type GuestProcessRecord,
  PROCESS_FLAGS,
} from '../../machines/guest-link/guest-protocol.ts';
import { LIMITS } from '../../../shared/limits.ts';
import { SANDBOX_LIMITS } from '../limits.ts';
import type { Logger } from '../../../shared/log.ts';
import { inSpan } from '../../../shared/spans.ts';
import type {
  SandboxExecRecord,
  SandboxExecStatus,
} from '../../../shared/schemas/sandbox-record.ts';
import type {
  SandboxExecRow,
  SandboxExecState,
  SandboxJournal,
} from '../../system/journal/sandbox-journal.ts';
import type { GuestChannel } from '../../machines/guest-link/guest-channel.ts';
import { guestSilent } from '../../machines/guest-link/guest-errors.ts';
import type { GuestLink } from '../../machines/guest-link/guest-link.ts';
import { SerialQueue } from '../../system/queues/serial-queue.ts';
import { settledWithin } from '../../../shared/settled-within.ts';
import { failpoint } from '../../system/failpoint.ts';
import {
  ExecOutput,
  type OutputDirectory,
  readExecOutput,
  removeExecOutput,
} from './exec-output.ts';
import { ExecRecords } from './exec-records.ts';
import { SandboxExec } from './sandbox-exec.ts';

export interface SandboxExecSpec {
  readonly id: string;
  readonly command: string;
  readonly environment: Readonly<Record<string, string>>;
  readonly hasTerminal: boolean;
  readonly timeoutSeconds: number | undefined;
}

export interface ExecWithOutput {
  readonly exec: SandboxExecRecord;
  readonly stdout: Buffer;
  readonly stderr: Buffer;
}

const noSuchExec = (): AppError => new AppError('not_found', 'there is no such exec');

/** The list's form of a record: a command can be long, and there are many. */
function toListed({ timeoutAt: _, ending: __, ...exec }: SandboxExecRow): SandboxExecRecord {
  if (exec.command.length <= SANDBOX_LIMITS.sandboxCommandListedMax) return exec;
  const command = exec.command.slice(0, SANDBOX_LIMITS.sandboxCommandListedMax);
  return { ...exec, command, isCommandCut: true };
}

const toRecord = ({ timeoutAt: _, ending: __, ...exec }: SandboxExecRow): SandboxExecRecord => exec;

/** The commands of one sandbox: those that run, and the newest of those that have ended. */
export class SandboxExecs {
  readonly #sandboxId: string;
  readonly #runningMax: number;
  readonly #outputs: () => OutputDirectory;
  readonly #journal: SandboxJournal;
  readonly #records: ExecRecords;
  readonly #log: Logger;
  readonly #running = new Map<string, SandboxExec>();
  /** Commands that run or are about to: both count towards the limit. */
  readonly #begun = new Set<string>();
  readonly #dropping = new SerialQueue();
  #link: GuestLink | undefined;
  /** Why nothing is begun now, while the sandbox pauses. */
  #refused: string | undefined;
  #hold: () => () => void = () => () => undefined;

  constructor(
    sandboxId: string,
    runningMax: number,
    parts: {
      readonly outputs: () => OutputDirectory;
      readonly journal: SandboxJournal;
      readonly handOver?: ((row: SandboxExecState) => Promise<void>) | undefined;
      readonly log: Logger;
    },
  ) {
    this.#sandboxId = sandboxId;
    this.#runningMax = runningMax;
    this.#outputs = parts.outputs;
    this.#journal = parts.journal;
    this.#records = new ExecRecords(parts.journal, parts.handOver);
    this.#log = parts.log;
  }

  /** @param hold called when a command begins to run; what it returns, when it has ended */
  holdBy(hold: () => () => void): void {
    this.#hold = hold;
  }

  /** Restores the commands that a former agent journalled. */
  async load(): Promise<void> {
    for (const state of await this.#journal.runningExecs(this.#sandboxId)) {
      this.#track(await this.#open(state));
    }
  }

  /** @throws AppError `unavailable` when the guest does not answer, or ends */
  async #channel(): Promise<GuestChannel> {
    if (this.#link?.channel !== undefined) return this.#link.channel;
    try {
      const signal = AbortSignal.timeout(SANDBOX_LIMITS.sandboxExecGuestMsMax);
      const channel = await this.#link?.opened(signal);
      if (channel !== undefined) return channel;
    } catch (cause) {
      throw guestSilent(cause);
    }
    throw guestSilent();
  }

  /** From now on, each new channel to this guest follows the running commands again. */
  attach(link: GuestLink): void {
    this.#link = link;
    this.#refused = undefined;
    const opened = (channel: GuestChannel, processes: readonly GuestProcessRecord[]): void => {
      this.#listen(channel);
      this.#adopt(channel, [...this.#running.values()], processes).catch((error: unknown) => {
        this.#log.warn(
          { sandboxId: this.#sandboxId, err: toError(error) },
          'sandbox:adoptExecsFailed',
        );
        channel.close(); // The next one tries again.
      });
    };
    link.on('opened', opened);
    if (link.channel !== undefined) opened(link.channel, link.processes);
  }

  /**
   * Journals a command and starts it. Resolves when it runs, or has failed to, and its row is
   * durable.
   * @throws AppError `rate_limited`, `unavailable` when the guest does not answer
   */
  async begin(spec: SandboxExecSpec): Promise<SandboxExec> {
    const answering = await this.#channel();
    if (this.#begun.size >= this.#runningMax) {
      const message = `the sandbox runs as many commands as it may (${this.#runningMax})`;
      throw new AppError('rate_limited', message);
    }
    // Checked before the command is journalled: one that was accepted must not fail for this.
    if (!answering.hasRoomBeside(this.#begun)) {
      const message = 'the guest holds as many processes as it can; wait until some have ended';
      throw new AppError('rate_limited', message);
    }
    const { id, command, environment, hasTerminal, timeoutSeconds } = spec;
    const now = Date.now();
    const state: SandboxExecState = {
      id,
      sandboxId: this.#sandboxId,
      timeoutAt: timeoutSeconds === undefined ? undefined : now + timeoutSeconds * 1000,
      status: 'running',
      ending: undefined,
      startedAt: new Date(now).toISOString(),
      droppedBytes: 0,
    };
    const exec = await this.#enter(state, command);
    // Without an await in between: a channel that opened meanwhile would miss it, and give it up.
    const { channel } = this.#link ?? {};
    this.#track(exec);
    const begun = async (): Promise<void> => {
      if (this.#refused !== undefined) await exec.lose('cancelled', this.#refused);
      else if (channel === undefined) await exec.lose('failed', 'the sandbox did not answer');
      else await exec.start(channel, { command, environment, hasTerminal });
    };
    // The command begins while its row becomes durable: a crash of the host would end it with its
    // machine.
    await Promise.all([begun(), this.#records.begun(state)]);
    runInBackground('sandboxExec.dropOldest', () => this.#dropping.add(() => this.#dropOldest()));
    return exec;
  }

  /** Lists the newest commands in the order of their execution. */
  async list(): Promise<SandboxExecRecord[]> {
    const { sandboxExecsListedMax: count, sandboxCommandListedMax: commandLength } = SANDBOX_LIMITS;
    // Reading one more character tells whether the command was longer.
    const rows = await this.#journal.listExecs(this.#sandboxId, count, commandLength + 1);
    return rows.map(toListed);
  }

  /** @throws AppError `not_found` */
  async read(id: string): Promise<ExecWithOutput> {
    const exec = toRecord(await this.#find(id));
    return { exec, ...(await readExecOutput(this.#outputs(), id)) };
  }

  /** Ends the command if it runs. @throws AppError `not_found` */
  async cancel(id: string): Promise<SandboxExecRecord> {
    const running = this.#running.get(id);
    if (running !== undefined) {
      await running.end('cancelled');
      // A guest that does not answer is killed when it does; the record says what will be.
      await settledWithin(running.ended, LIMITS.killGraceMs);
    }
    return toRecord(await this.#find(id));
  }

  /** The sandbox is about to stop, and what runs in it with it. */
  expectStop(): void {
    for (const exec of this.#running.values()) exec.expectEnd('the sandbox was stopped');
  }

  /** Cancels all commands, and refuses new ones until `acceptAgain` or `attach`. */
  async cancelAll(why: string): Promise<void> {
    this.#refused = why;
    const running = [...this.#running.values()];
    for (const exec of running) exec.expectEnd(why);
    await Promise.all(running.map((exec) => exec.end('cancelled')));
    // A guest that does not answer has lost them; their record says so when the sandbox pauses.
    await settledWithin(Promise.all(running.map((exec) => exec.ended)), LIMITS.killGraceMs);
  }

  /** After `cancelAll`, when the sandbox runs on. */
  acceptAgain(): void {
    this.#refused = undefined;
  }

  /** The machine is gone: what ran in it has ended. */
  async loseAll(status: SandboxExecStatus, reason: string, endedAt?: number): Promise<void> {
    this.#link = undefined;
    const running = [...this.#running.values()];
    await Promise.all(running.map((exec) => exec.lose(status, reason, endedAt)));
  }

  /** The commands run on without this agent. */
  async detach(): Promise<void> {
    this.#link = undefined;
    await Promise.all([...this.#running.values()].map((exec) => exec.detach()));
    await this.#dropping.idle;
  }

  /** Removes all records and output; called when the sandbox is deleted. */
  async removeAll(): Promise<void> {
    await this.#dropping.idle;
    const { directory, onThread } = this.#outputs();
    await failpoint('remove exec output', () =>
      onThread(() => rm(directory, { recursive: true, force: true })),
    );
  }

  /**
   * Journals a new command, once there is a directory for its output: none is journalled that
   * cannot begin.
   */
  async #enter(state: SandboxExecState, command: string): Promise<SandboxExec> {
    this.#begun.add(state.id);
    try {
      const output = await ExecOutput.create(this.#outputs(), state.id);
      await failpoint('journal exec', () => this.#journal.beginExec({ ...state, command }));
      return new SandboxExec(this.#records, output, state, this.#log);
    } catch (error) {
      this.#begun.delete(state.id);
      throw error;
    }
  }

  async #open(state: SandboxExecState): Promise<SandboxExec> {
    const output = await ExecOutput.open(this.#outputs(), state.id);
    return new SandboxExec(this.#records, output, state, this.#log);
  }

  #track(exec: SandboxExec): void {
    const { id } = exec.row;
    this.#begun.add(id);
    this.#running.set(id, exec);
    const release = this.#hold();
    const attributes = { 'berth.sandbox_id': this.#sandboxId, 'berth.exec_id': id };
    runInBackground('sandboxExec.forget', async () => {
      await inSpan({ name: 'guest.command', attributes }, () => exec.ended);
      this.#begun.delete(id);
      this.#running.delete(id);
      release();
    });
  }

  #listen(channel: GuestChannel): void {
    channel.on('output', (output) => {
      this.#running.get(output.processId)?.receiveOutput(channel, output);
    });
    channel.on('exited', (exit) => this.#running.get(exit.processId)?.receiveExit(exit));
  }

  async #adopt(
    channel: GuestChannel,
    running: readonly SandboxExec[],
    processes: readonly GuestProcessRecord[],
  ): Promise<void> {
    const known = new Map(processes.map((record) => [record.id, record]));
    for (const exec of running) {
      await exec.adopt(channel, known.get(exec.row.id));
      known.delete(exec.row.id);
    }
    // Orphans: their end is journalled, or they belong to the sandbox that this one was forked
    // from. Nobody reads their output here, so they must not wait until somebody does.
    for (const { id, flags } of known.values()) {
      if ((flags & PROCESS_FLAGS.session) !== 0) continue;
      await ((flags & PROCESS_FLAGS.exited) === 0 ? channel.unfollow(id) : channel.forget(id));
    }
  }

  async #find(id: string): Promise<SandboxExecRow> {
    const row = await this.#journal.exec(this.#sandboxId, id);
    if (row === undefined) throw noSuchExec();
    return row;
  }

  async #dropOldest(): Promise<void> {
    const ended = await this.#journal.endedExecs(this.#sandboxId);
    const surplus = ended.length - SANDBOX_LIMITS.sandboxExecsListedMax;
    for (const id of ended.slice(0, Math.max(0, surplus))) {
      await removeExecOutput(this.#outputs(), id);
      await this.#journal.removeExec(id);
    }
  }
}
