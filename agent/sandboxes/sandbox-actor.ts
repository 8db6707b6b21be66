import { randomUUID } from 'node:crypto';
import { AppError, toError } from '../../shared/errors.ts';
import { LIMITS } from '../../shared/limits.ts';
import type { SandboxExecRecord, SandboxRecord } from '../../shared/schemas/sandbox-record.ts';
import { settledWithin } from '../../shared/settled-within.ts';
import type { SandboxRow } from '../journal/sandbox-journal.ts';
import { Mailbox } from '../queues/mailbox.ts';
import { ActionGate } from './action-gate.ts';
import { CopyGate, copyMsMax } from './copy-gate.ts';
import { CurrentSession } from './current-session.ts';
import type { ExecWithOutput, SandboxExecs, SandboxExecSpec } from './execs/sandbox-execs.ts';
import type { SandboxProcesses } from './processes/sandbox-processes.ts';
import { SessionError } from './processes/session-error.ts';
import type { DependentForks } from './fork-tree.ts';
import { JournalledSandbox, type NewLimits } from './journalled-sandbox.ts';
import type { MachineOwner } from './machine-driver.ts';
import type { SandboxActorDeps, SandboxContext } from './sandbox-context.ts';
import { createSandbox, type Creation, removeUncreated } from './sandbox-creation.ts';
import { SandboxDeletion } from './sandbox-deletion.ts';
import { endOverdueTransition, handleMachineEvent } from './sandbox-events.ts';
import { beginPause } from './sandbox-pause.ts';
import { giveUp, recoverSandbox } from './sandbox-recovery.ts';
import { beginStop, newDiskCheckpoint, stopPaused } from './sandbox-rest.ts';
import { beginStart, bringUp, type StartState } from './sandbox-start.ts';
import { StartClock } from './start-clock.ts';
import { TransitionWatchdog } from './transition-watchdog.ts';

const STOP = 'stop was asked for';
const NOT_CONTINUED = 'it did not run on in time after a fork, so the host ended it';

/** What runs in a sandbox: commands of the REST API, and the processes of sessions. */
export interface SandboxRuns {
  readonly execs: SandboxExecs;
  readonly processes: SandboxProcesses;
}

/**
 * The life of one sandbox (`shared/sandbox-lifecycle.ts`). Its truth is the journal; actions are
 * handled one at a time, and what takes long runs outside the mailbox and reports back as a message.
 */
export class SandboxActor {
  readonly #mailbox = new Mailbox();
  readonly #context: SandboxContext;
  readonly #gate: ActionGate;
  readonly #deletion: SandboxDeletion;
  #hasLeftovers = false;

  constructor(deps: SandboxActorDeps, row: SandboxRow, { execs, processes }: SandboxRuns) {
    const context: SandboxContext = {
      ...{ deps, execs, processes, copies: new CopyGate() },
      watchdog: new TransitionWatchdog(() => endOverdueTransition(context)),
      current: new CurrentSession({
        ...{ sandboxId: row.id, mailbox: this.#mailbox, log: deps.log },
        handle: (event) => handleMachineEvent(context, event),
      }),
      sandbox: new JournalledSandbox(deps, row, {
        entered: () => context.watchdog.watch(this.row),
        limitReached: () => this.#handleLimit(),
        send: (write) => this.#mailbox.send(write),
      }),
    };
    this.#context = context;
    this.#gate = new ActionGate(this.#mailbox, context);
    this.#deletion = new SandboxDeletion(context);
    execs.holdBy(() => this.holdIdle());
    processes.useBy({ hold: () => this.holdIdle(), touch: () => context.sandbox.touch() });
  }

  get id(): string {
    return this.row.id;
  }

  get accountId(): string {
    return this.row.accountId;
  }

  get row(): SandboxRow {
    return this.#context.sandbox.row;
  }

  /** As it is published. */
  get record(): SandboxRecord {
    return this.#context.sandbox.record;
  }

  /** It is deleted, though some of it may still be there. */
  get isDeleted(): boolean {
    return this.row.isDeleting;
  }

  /** Settles when nothing of it is left after its deletion. */
  get removed(): Promise<void> {
    return this.#deletion.done;
  }

  /** It was not created, but something of its machine is there: nobody else may get its user. */
  get hasLeftovers(): boolean {
    return this.#hasLeftovers;
  }

  /**
   * Journals the sandbox and begins to start it.
   * @throws AppError `no_capacity`, `host_full`, whatever `copy` throws; nothing of it is left then
   */
  async create(creation: Creation = {}): Promise<void> {
    await this.#mailbox.send(async () => {
      const clock = new StartClock();
      try {
        await createSandbox(this.#context, creation);
      } catch (error) {
        this.#hasLeftovers = !(await removeUncreated(this.#context, creation));
        throw error;
      }
      bringUp(this.#context, clock);
    });
    await this.#context.sandbox.publishNew();
  }

  /** Continues where a former agent ended; one that cannot be taken over is ended. */
  async recover(): Promise<void> {
    const { sandbox, deps } = this.#context;
    sandbox.takeUp();
    await this.#mailbox.send(async () => {
      if (this.isDeleted) return this.#deletion.resume();
      try {
        await recoverSandbox(this.#context);
      } catch (error) {
        deps.log.error({ sandboxId: this.id, err: toError(error) }, 'sandbox:recoverFailed');
        await giveUp(this.#context, toError(error));
      }
    });
    await sandbox.publish();
  }

  /** The directory has lost it. */
  async republish(): Promise<void> {
    await this.#context.sandbox.publish();
  }

  /** A checkpoint is given up for it. @throws AppError the verdict’s code, `no_capacity`, `host_full` */
  async start(): Promise<void> {
    await this.#gate.act('start', async () => {
      // The checkpoint's files are removed when it boots.
      const change = { checkpoint: undefined, bootId: randomUUID() };
      await beginStart(this.#context, 'pending_start', change, 'start was asked for');
    });
  }

  /** Goes on where it was paused. @throws AppError the verdict’s code, `no_capacity`, `host_full` */
  async resume(): Promise<void> {
    await this.#gate.act('resume', () =>
      beginStart(this.#context, 'pending_resume', {}, 'resume was asked for'),
    );
  }

  /** Keeps memory and disk, and ends the machine. @throws AppError the verdict’s code */
  async pause(): Promise<void> {
    await this.#gate.act('pause', () => beginPause(this.#context, 'pause was asked for'));
  }

  /** The guest may shut down; after the grace time it is killed. @throws AppError the verdict’s code */
  async stop(): Promise<void> {
    await this.#gate.act('stop', async (to) => {
      if (to === 'stopped') return stopPaused(this.#context);
      await this.#context.sandbox.enter('stopping', await newDiskCheckpoint(this.#context), STOP);
      beginStop(this.#context);
    });
  }

  /**
   * Gives a sandbox that does not exist yet a copy of the disk, and of the memory if there is any.
   * @param checkpoint the one that this sandbox must have
   * @throws AppError the verdict’s code, `sandbox_start_conflict` for another checkpoint,
   *   `unavailable` when machine or guest do not answer
   */
  async fork(child: MachineOwner, checkpoint: string | undefined): Promise<StartState> {
    // Meanwhile the mailbox handles other messages than actions, such as the end of the machine.
    const { copied } = await this.#gate.send(async () => {
      this.#gate.judge('fork');
      if (checkpoint !== undefined && checkpoint !== this.row.checkpoint) {
        const message = 'the sandbox has another checkpoint now: it went on meanwhile';
        throw new AppError('sandbox_start_conflict', message);
      }
      this.#context.sandbox.touch();
      return { copied: this.#copyTo(child) };
    });
    return copied;
  }

  /** Sets how long the session may go on, and sessions to come. @throws AppError `bad_request` */
  async setLimits(limits: NewLimits): Promise<void> {
    await this.#mailbox.send(async () => {
      this.#gate.refuseIfDeleted();
      await this.#context.sandbox.setLimits(limits);
    });
    await this.#context.sandbox.publish();
  }

  /** It is not idle until the function that this returns is called. */
  holdIdle(): () => void {
    return this.#context.sandbox.hold();
  }

  /**
   * Deletes it and its disk, unless others were forked from it.
   * @returns those forks
   * @throws AppError `sandbox_not_stopped`
   */
  async delete(forks: () => DependentForks | undefined): Promise<DependentForks | undefined> {
    return this.#gate.send(async () => {
      if (this.isDeleted) return undefined;
      this.#gate.judge('delete');
      const dependent = forks();
      if (dependent === undefined) await this.#deletion.begin();
      return dependent;
    });
  }

  /** Deletes it whatever its state: its creator was told that there is none. */
  async discard(): Promise<void> {
    await this.#gate.send(async () => {
      if (this.isDeleted) return;
      await this.#context.current.leave('the sandbox is discarded');
      await this.#context.execs.loseAll('failed', 'the sandbox was discarded');
      this.#context.processes.loseAll('cancelled', 'the sandbox was discarded');
      await this.#deletion.begin();
    });
  }

  /**
   * Runs a command; resolves when it runs, or has failed to.
   * @returns settles with its record when it has ended
   */
  async exec(spec: SandboxExecSpec): Promise<{ ended: Promise<unknown> }> {
    const begun = await this.#mailbox.send(async () => {
      this.#gate.judge('exec');
      this.#context.sandbox.touch();
      // Not awaited here: a slow guest must not keep it from being stopped.
      return { exec: this.#context.execs.begin(spec) };
    });
    const { ended } = await begun.exec;
    return { ended };
  }

  execs(): Promise<SandboxExecRecord[]> {
    return this.#context.execs.list();
  }

  readExec(id: string): Promise<ExecWithOutput> {
    return this.#context.execs.read(id);
  }

  cancelExec(id: string): Promise<SandboxExecRecord> {
    return this.#context.execs.cancel(id);
  }

  /**
   * The processes that clients may use now.
   * @throws AppError `not_found`, `sandbox_not_running`
   */
  async connect(): Promise<SandboxProcesses> {
    return this.#mailbox.send(async () => {
      this.#gate.judge('connect');
      this.#context.sandbox.touch();
      return this.#context.processes;
    });
  }

  /** Resolves when what was asked of it so far is begun. */
  async begun(): Promise<void> {
    await this.#gate.send(async () => undefined);
  }

  /** Resolves when it is in no transition, or after that time. */
  settled(waitMs: number): Promise<void> {
    return this.#context.sandbox.settled(waitMs);
  }

  /** Its machine runs on without this agent; nothing is journalled or published from here on. */
  async detach(): Promise<void> {
    const { sandbox, watchdog, copies, current, execs, processes } = this.#context;
    sandbox.detach();
    current.close();
    watchdog.clear();
    this.#deletion.close();
    // What is durable need not be done again by the next agent.
    await settledWithin(Promise.all([copies.copying, current.pausing]), LIMITS.sandboxDetachMs);
    await current.leave('the agent ends');
    processes.disconnect(new SessionError('internal_error', 'the host restarts; attach again'));
    await execs.detach();
  }

  /** Copies the machine or the disk while actions wait; a copy that takes too long ends the machine. */
  async #copyTo(child: MachineOwner): Promise<StartState> {
    const { deps, copies, current } = this.#context;
    const { state, vmId, config } = this.row;
    const copying = deps.driver.fork(vmId, child);
    copies.hold(copying, copyMsMax(config.memSizeMib), () => current.killOverdue(NOT_CONTINUED));
    await copying;
    return state === 'stopped' ? 'pending_start' : 'pending_resume';
  }

  /** It has run, or been idle, for as long as it may. */
  #handleLimit(): void {
    const { sandbox, deps } = this.#context;
    const pause = async (): Promise<void> => {
      // It may have been used, or been given more time, while this message waited.
      if (sandbox.isDetached || !sandbox.isLimitReached || this.row.state !== 'running') return;
      await beginPause(this.#context, 'a time limit is reached');
    };
    this.#gate.send(pause).catch((error: unknown) => {
      deps.log.error({ sandboxId: this.id, err: toError(error) }, 'sandbox:limitFailed');
      sandbox.postponeLimits();
    });
  }
}
