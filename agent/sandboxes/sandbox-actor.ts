import { randomUUID } from 'node:crypto';
import { runInBackground } from '../../shared/background.ts';
import { AppError, toError } from '../../shared/errors.ts';
import { LIMITS } from '../../shared/limits.ts';
import {
  isTransitional,
  type SandboxCommand,
  type SandboxState,
  type Verdict,
  verdictOn,
} from '../../shared/sandbox-lifecycle.ts';
import type { SandboxExecRecord, SandboxRecord } from '../../shared/schemas/sandbox-record.ts';
import { settledWithin } from '../../shared/settled-within.ts';
import type { SandboxRow } from '../journal/sandbox-journal.ts';
import { BootError, type Machine, type MachineEnd } from './machine-driver.ts';
import type { DependentForks } from './fork-tree.ts';
import type { HostCapacity } from './host-capacity.ts';
import {
  JournalledSandbox,
  type JournalledSandboxDeps,
  type NewLimits,
  type SandboxChange,
} from './journalled-sandbox.ts';
import { MachineSession, type MachineSessionDeps } from './machine-session.ts';
import type { ExecWithOutput, SandboxExecs, SandboxExecSpec } from './execs/sandbox-execs.ts';
import { machineSpec } from './sandbox-row.ts';
import { type ObserveStart, StartClock } from './start-clock.ts';
import { step } from '../system/failpoint.ts';
import { Mailbox } from '../queues/mailbox.ts';

export interface SandboxActorDeps extends JournalledSandboxDeps, MachineSessionDeps {
  readonly capacity: HostCapacity;
  readonly bootTimeoutMs: number;
  readonly observeStart: ObserveStart;
}

/** A fork that is still to be made. */
export interface ForkTarget {
  /** Of its machine. */
  readonly id: string;
  readonly uid: number;
}

/** The state in which a fork begins. */
export type ForkState = 'pending_start' | 'pending_resume';

/** What a sandbox is made of beside nothing. */
interface Creation {
  /** Of the machine that was made ahead for it. */
  readonly slot?: number | undefined;
  /** Makes its disk from that of another sandbox, and tells how it begins. */
  readonly copy?: () => Promise<ForkState>;
}

const STOPPED: MachineEnd = { reason: 'stopped', message: 'stopped before it ran' };
const PAUSED = 'the sandbox was paused';
const LATE = 'it did not come up in time';
const REPORTED_AGAIN_MS = 1_000;
const shorten = (text: string): string => text.slice(0, LIMITS.sandboxExitMessageLengthMax);

/**
 * The life of one sandbox (`shared/sandbox-lifecycle.ts`). It is what the journal says; commands are
 * handled one at a time, and what takes long runs beside them and reports back as a message.
 */
export class SandboxActor {
  readonly #deps: SandboxActorDeps;
  readonly #execs: SandboxExecs;
  readonly #mailbox = new Mailbox();
  readonly #sandbox: JournalledSandbox;
  #session: MachineSession | undefined;
  #watchdog: NodeJS.Timeout | undefined;
  /** Settles when nothing copies its machine or disk any more; commands wait for it. */
  #copying: Promise<unknown> | undefined;
  #pausing: Promise<unknown> | undefined;
  #isLeft = false;

  constructor(deps: SandboxActorDeps, row: SandboxRow, execs: SandboxExecs) {
    this.#deps = deps;
    this.#sandbox = new JournalledSandbox(deps, row, {
      entered: () => this.#watchTransition(),
      limitReached: () => this.#handleLimit(),
      send: (write) => this.#mailbox.send(write),
    });
    this.#execs = execs;
    execs.holdBy(() => this.holdIdle());
  }

  get id(): string {
    return this.#row.id;
  }

  get accountId(): string {
    return this.#row.accountId;
  }

  get isDeleted(): boolean {
    return this.#row.isDeleting;
  }

  /** It was not created, but something of its machine is there: its user must stay its own. */
  get isLeft(): boolean {
    return this.#isLeft;
  }

  /** As it is published. */
  get record(): SandboxRecord {
    return this.#sandbox.record;
  }

  get row(): SandboxRow {
    return this.#row;
  }

  get #row(): SandboxRow {
    return this.#sandbox.row;
  }

  /**
   * Journals the sandbox and begins to start it.
   * @throws AppError `no_capacity`, `host_full`, whatever `copy` throws; nothing of it is left then
   */
  async create({ slot: ahead, copy }: Creation = {}): Promise<void> {
    await this.#mailbox.send(async () => {
      const clock = new StartClock();
      try {
        await this.#takeRoom(async (slot) => {
          const state = (await copy?.()) ?? 'pending_start';
          const checkpoint = state === 'pending_resume' ? randomUUID() : undefined;
          await this.#sandbox.insert(state, { slot, checkpoint });
        }, ahead);
      } catch (error) {
        await this.#undoCreate(ahead);
        throw error;
      }
      this.#bringUp(clock);
    });
    await this.#sandbox.publishNew();
  }

  /** What cannot be removed now is by the next agent; until then nobody else gets user and slot. */
  async #undoCreate(slot: number | undefined): Promise<void> {
    const { driver, slots, log } = this.#deps;
    try {
      await driver.remove(this.#row.vmId);
      if (slot !== undefined) await slots.release(slot);
    } catch (error) {
      this.#isLeft = true;
      log.error({ sandboxId: this.id, err: toError(error) }, 'sandbox:notRemoved');
    }
  }

  /** Goes on where a former agent was ended. */
  async recover(): Promise<void> {
    this.#sandbox.takeUp();
    await this.#mailbox.send(() => this.#recover());
    await this.#sandbox.publish();
  }

  /** Says again what it is: the directory has lost it. */
  async republish(): Promise<void> {
    await this.#sandbox.publish();
  }

  /** A checkpoint is given up for it. @throws AppError the verdict’s code, `no_capacity`, `host_full` */
  async start(): Promise<void> {
    await this.#command('start', async () => {
      // What the checkpoint has is removed when it boots.
      const change = { checkpoint: undefined, bootId: randomUUID() };
      await this.#beginUp('pending_start', change, 'start was asked for');
    });
  }

  /** Goes on where it was paused. @throws AppError the verdict’s code, `no_capacity`, `host_full` */
  async resume(): Promise<void> {
    await this.#command('resume', () =>
      this.#beginUp('pending_resume', {}, 'resume was asked for'),
    );
  }

  /** Keeps memory and disk, and ends the machine. @throws AppError the verdict’s code */
  async pause(): Promise<void> {
    await this.#command('pause', () => this.#beginPause('pause was asked for'));
  }

  /** The guest may end in order; after the grace time it is killed. @throws AppError */
  async stop(): Promise<void> {
    await this.#command('stop', async (to) => {
      if (to === 'stopped') return this.#stopPaused();
      await this.#sandbox.enter('stopping', { checkpoint: randomUUID() }, 'stop was asked for');
      this.#beginStop();
    });
  }

  /**
   * Gives a sandbox that is not there yet a copy of the disk, and of the memory if there is any.
   * @param checkpoint the one that this sandbox must have
   * @throws AppError the verdict’s code, `sandbox_start_conflict` for another checkpoint
   */
  async fork(child: ForkTarget, checkpoint: string | undefined): Promise<ForkState> {
    const { copied } = await this.#send(async () => {
      this.#judge('fork');
      if (checkpoint !== undefined && checkpoint !== this.#row.checkpoint) {
        const message = 'the sandbox has another checkpoint now: it went on meanwhile';
        throw new AppError('sandbox_start_conflict', message);
      }
      this.#sandbox.touch();
      const copying = this.#copyTo(child);
      this.#waitForCopy(copying);
      return { copied: copying };
    });
    return copied;
  }

  /** Sets how long the session may go on, and sessions to come. @throws AppError `bad_request` */
  async setLimits(limits: NewLimits): Promise<void> {
    await this.#mailbox.send(async () => {
      this.#refuseIfDeleted();
      await this.#sandbox.setLimits(limits);
    });
    await this.#sandbox.publish();
  }

  /** It is not idle until the function that this returns is called. */
  holdIdle(): () => void {
    return this.#sandbox.hold();
  }

  /**
   * Deletes it and its disk, unless others were forked from it.
   * @returns those forks
   * @throws AppError `sandbox_not_stopped`
   */
  async delete(forks: () => DependentForks | undefined): Promise<DependentForks | undefined> {
    return this.#send(async () => {
      if (this.#row.isDeleting) return undefined;
      this.#judge('delete');
      const dependent = forks();
      if (dependent === undefined) await this.#delete();
      return dependent;
    });
  }

  /** Takes it back, whatever it is at: its creator was told that there is none. */
  async discard(): Promise<void> {
    await this.#send(async () => {
      if (this.#row.isDeleting) return;
      await this.#leaveSession('the sandbox is discarded');
      await this.#execs.loseAll('failed', 'the sandbox was discarded');
      await this.#delete();
    });
  }

  /**
   * Runs a command; resolves when it runs, or has failed to.
   * @returns settles with its record when it has ended
   */
  async exec(spec: SandboxExecSpec): Promise<{ ended: Promise<unknown> }> {
    const begun = await this.#mailbox.send(async () => {
      this.#judge('exec');
      this.#sandbox.touch();
      // Not awaited here: a guest that is slow must not keep it from being stopped.
      return { exec: this.#execs.begin(spec) };
    });
    const { ended } = await begun.exec;
    return { ended };
  }

  execs(): Promise<SandboxExecRecord[]> {
    return this.#execs.list();
  }

  readExec(id: string): Promise<ExecWithOutput> {
    return this.#execs.read(id);
  }

  cancelExec(id: string): Promise<SandboxExecRecord> {
    return this.#execs.cancel(id);
  }

  /** Resolves when what was asked of it so far is begun. */
  async begun(): Promise<void> {
    await this.#send(async () => undefined);
  }

  /** Resolves when it is in no transition, or after that time. */
  settled(waitMs: number): Promise<void> {
    return this.#sandbox.settled(waitMs);
  }

  /** Lets go of it: its machine runs on. Nothing is journalled or published from here on. */
  async detach(): Promise<void> {
    this.#sandbox.detach();
    clearTimeout(this.#watchdog);
    // What is durable need not be done again by the next agent.
    await settledWithin(Promise.all([this.#copying, this.#pausing]), LIMITS.sandboxDetachMs);
    await this.#leaveSession('the agent ends');
    await this.#execs.detach();
  }

  async #leaveSession(reason: string): Promise<void> {
    const session = this.#session;
    this.#session = undefined;
    await session?.leave(reason);
  }

  /** What the command comes to now. @throws AppError when it is refused */
  #judge(command: SandboxCommand): Verdict {
    this.#refuseIfDeleted();
    const verdict = verdictOn(this.#row.state, command);
    if (verdict.kind !== 'refuse') return verdict;
    const state = this.#row.state.replace('_', ' ');
    throw new AppError(verdict.code, `the sandbox is ${state}: ${command} is not possible now`);
  }

  #refuseIfDeleted(): void {
    if (this.#row.isDeleting) throw new AppError('not_found', 'there is no such sandbox');
  }

  /** A message that is handled when nothing copies the machine or the disk. */
  async #send<T>(handle: () => Promise<T>): Promise<T> {
    for (;;) {
      await this.#copying;
      const handled = await this.#mailbox.send(async () =>
        this.#copying === undefined ? { result: await handle() } : undefined,
      );
      if (handled !== undefined) return handled.result;
    }
  }

  async #command(
    command: SandboxCommand,
    begin: (to: SandboxState | 'deleted') => Promise<void>,
  ): Promise<void> {
    await this.#send(async () => {
      const verdict = this.#judge(command);
      this.#sandbox.touch();
      if (verdict.kind === 'begin') await begin(verdict.to);
    });
    await this.#sandbox.publish();
  }

  /** It has run, or been idle, for as long as it may. */
  #handleLimit(): void {
    const pause = async (): Promise<void> => {
      // It may have been used, or been given more time, while this message waited.
      const { isDetached, isLimitReached } = this.#sandbox;
      if (isDetached || !isLimitReached || this.#row.state !== 'running') return;
      await this.#beginPause('a time limit is reached');
    };
    this.#send(pause).catch((error: unknown) => {
      this.#deps.log.error({ sandboxId: this.id, err: toError(error) }, 'sandbox:limitFailed');
      this.#sandbox.postponeLimits();
    });
  }

  /** Each transition has a deadline. */
  #watchTransition(): void {
    clearTimeout(this.#watchdog);
    const { state } = this.#row;
    if (state === 'pausing') this.#watch(this.#copyMsMax);
    if (state === 'stopping') {
      this.#watch(LIMITS.sandboxStopGraceMs + 2 * LIMITS.sandboxKillMsMax);
    }
  }

  /** Holds room and a network slot for what is then made; gives back what it took when that fails. */
  async #takeRoom(make: (slot: number) => Promise<void>, given?: number): Promise<void> {
    const { capacity, slots } = this.#deps;
    capacity.hold(this.id, this.#row.config);
    try {
      if (given !== undefined) return await make(given);
      const { index } = await slots.lease();
      try {
        await make(index);
      } catch (error) {
        await slots.release(index);
        throw error;
      }
    } catch (error) {
      capacity.release(this.id);
      throw error;
    }
  }

  async #beginUp(to: ForkState, change: SandboxChange, cause: string): Promise<void> {
    const clock = new StartClock();
    await this.#takeRoom((slot) => {
      const begun = { runningAt: undefined, finishedAt: undefined, exitReason: undefined };
      return this.#sandbox.enter(to, { ...change, ...begun, slot }, cause);
    });
    this.#bringUp(clock);
  }

  /** Beside the mailbox: from the turn to boot or resume to the end of the machine. */
  #bringUp(clock = new StartClock()): void {
    clock.end('placed');
    const session = new MachineSession(clock);
    this.#session = session;
    const turnCame = (): void => this.#watch(this.#deps.bootTimeoutMs + LIMITS.sandboxKillMsMax);
    session.bringUp(this.#row, this.#deps, turnCame).then(
      (machine) => this.#report(session, () => this.#handleUp(session, machine)),
      (error: unknown) => this.#report(session, () => this.#handleNotUp(toError(error))),
    );
  }

  /** A message from beside the mailbox; what a former session still says is nothing to this one. */
  #report(session: MachineSession, handle: () => Promise<void>): void {
    const message = async (): Promise<void> => {
      if (this.#session === session && !this.#sandbox.isDetached) await handle();
    };
    this.#mailbox.send(message).catch((error: unknown) => {
      this.#deps.log.error({ sandboxId: this.id, err: toError(error) }, 'sandbox:failed');
      // The journal could not be written, as a rule: what happened is told again until it is.
      setTimeout(() => this.#report(session, handle), REPORTED_AGAIN_MS).unref();
    });
  }

  async #handleUp(session: MachineSession, machine: Machine): Promise<void> {
    this.#follow(session, machine);
    if (this.#row.state === 'stopping') return this.#beginStop(); // It came up all the same.
    const now = Date.now();
    await this.#sandbox.enter(
      'running',
      {
        checkpoint: undefined,
        runningAt: new Date(now).toISOString(),
        expiresAt: now + this.#row.config.maxTtlSeconds * 1000,
        idleSince: now,
      },
      'the guest is ready',
    );
    this.#execs.attach(machine.guest);
    this.#noticeStarted(session.clock, machine);
  }

  #noticeStarted(clock: StartClock, { origin }: Machine): void {
    if (origin === undefined) return;
    clock.end('restored', origin.beganAt);
    clock.end('ready');
    const { log, observeStart } = this.#deps;
    const { vmId } = this.#row;
    const started = { sandboxId: this.id, vmId, origin: origin.kind, timesMs: clock.times };
    log.info(started, 'sandbox:started');
    observeStart(origin.kind, clock.times);
  }

  async #handleNotUp(error: Error): Promise<void> {
    const { state } = this.#row;
    if (state === 'stopping') return this.#finish(STOPPED);
    if (state === 'pending_resume') return this.#handleNotResumed(error.message);
    const reason = error instanceof BootError ? error.reason : 'boot_failed';
    await this.#finish({ reason, message: error.message });
  }

  /** With its checkpoint untouched it is as it was. */
  async #handleNotResumed(message: string): Promise<void> {
    if (!(await this.#deps.driver.hasCheckpoint(this.#row.vmId))) {
      return this.#finish({ reason: 'resume_failed', message });
    }
    const exitMessage = shorten(`it could not be resumed: ${message}`);
    await this.#rest('paused', { exitMessage }, exitMessage);
  }

  #follow(session: MachineSession, machine: Machine): void {
    session.machine = machine;
    runInBackground('sandbox.noticeEnd', async () => {
      const end = await machine.ended;
      this.#report(session, () => this.#handleEnded(end));
    });
  }

  async #beginPause(cause: string): Promise<void> {
    const session = this.#session;
    const machine = session?.machine;
    if (session === undefined || machine === undefined) throw new Error('it runs on no machine');
    await this.#sandbox.enter('pausing', { checkpoint: randomUUID() }, cause);
    const pausing = this.#execs.cancelAll(PAUSED).then(() => machine.pause());
    this.#pausing = pausing.catch(toError);
    pausing.then(
      () => this.#report(session, () => this.#handlePaused()),
      (error: unknown) => this.#report(session, () => this.#handleNotPaused(toError(error))),
    );
  }

  async #handlePaused(): Promise<void> {
    this.#session?.machine?.detach();
    await this.#execs.loseAll('cancelled', PAUSED);
    await this.#rest('paused', {}, 'the checkpoint is durable');
  }

  /** It runs on; the caller sees why, and a time limit asks again. */
  async #handleNotPaused(error: Error): Promise<void> {
    // What failed may have come after the checkpoint, which counts as soon as it is there.
    if (await this.#deps.driver.hasCheckpoint(this.#row.vmId)) return this.#handlePaused();
    this.#deps.log.warn({ sandboxId: this.id, err: error }, 'sandbox:notPaused');
    await this.#runOn(`it could not be paused: ${error.message}`);
  }

  async #runOn(message: string): Promise<void> {
    const exitMessage = shorten(message);
    await this.#sandbox.enter('running', { checkpoint: undefined, exitMessage }, exitMessage);
    this.#execs.goOn();
    this.#sandbox.postponeLimits();
  }

  async #stopPaused(): Promise<void> {
    const change = {
      checkpoint: randomUUID(), // What was in memory is not to be had any more.
      finishedAt: new Date().toISOString(),
      exitReason: 'stopped',
      exitMessage: 'stopped while it was paused',
    } as const;
    await this.#sandbox.enter('stopped', change, 'stop was asked for');
    await this.#deps.driver.discardCheckpoint(this.#row.vmId);
  }

  async #copyTo(child: ForkTarget): Promise<ForkState> {
    const { state } = this.#row;
    if (state === 'running') {
      const machine = this.#session?.machine;
      if (machine === undefined) {
        throw new AppError('unavailable', 'the sandbox ended just now; try again');
      }
      await machine.fork(child);
      return 'pending_resume';
    }
    await this.#deps.driver.fork(this.#row.vmId, child);
    return state === 'paused' ? 'pending_resume' : 'pending_start';
  }

  /** Commands wait for it. One that takes too long is ended with its machine. */
  #waitForCopy(copying: Promise<unknown>): void {
    const session = this.#session;
    const watchdog = setTimeout(() => {
      this.#deps.log.error({ sandboxId: this.id }, 'sandbox:copyOverdue');
      runInBackground('sandbox.killOverdue', () => session?.machine?.kill());
    }, this.#copyMsMax);
    watchdog.unref();
    const settled = copying.catch(toError).finally(() => {
      clearTimeout(watchdog);
      this.#copying = undefined;
    });
    this.#copying = settled;
  }

  get #copyMsMax(): number {
    const { memSizeMib } = this.#row.config;
    return LIMITS.sandboxCopyMsBase + memSizeMib * LIMITS.sandboxCopyMsPerMib;
  }

  /** Ends the machine, or keeps it from coming up; `#finish` follows. */
  #beginStop(): void {
    const session = this.#session;
    if (session === undefined) return;
    this.#execs.expectStop();
    session.abort(new Error('the sandbox is to stop'));
    runInBackground('sandbox.stop', () => session.machine?.stop(LIMITS.sandboxStopGraceMs));
  }

  async #handleEnded(end: MachineEnd): Promise<void> {
    if (this.#row.state === 'pausing') {
      await this.#leavePause();
      if (await this.#deps.driver.hasCheckpoint(this.#row.vmId)) return this.#handlePaused();
    }
    await this.#finish(end);
  }

  /** A pause whose machine is gone ends soon; what it does until then is not to meet what follows. */
  async #leavePause(): Promise<void> {
    await settledWithin(Promise.resolve(this.#pausing), LIMITS.sandboxKillMsMax);
  }

  /** Nothing of the machine runs any more, and of its memory nothing is left. */
  async #finish(end: MachineEnd): Promise<void> {
    const wasStopping = this.#row.state === 'stopping';
    const isShutdown = end.reason === 'guest_shutdown';
    const to = wasStopping ? 'stopped' : isShutdown ? 'exited' : 'failed';
    const status = to === 'stopped' ? 'cancelled' : 'failed';
    await this.#execs.loseAll(status, `the sandbox ${to === 'stopped' ? 'was stopped' : 'ended'}`);
    const change = {
      checkpoint: to === 'stopped' ? this.#row.checkpoint : undefined,
      finishedAt: new Date().toISOString(),
      // A former agent may have asked for it, and the guest have ended before this one came.
      exitReason: wasStopping && isShutdown ? 'stopped' : end.reason,
      exitMessage: shorten(end.message),
    };
    await this.#rest(to, change, end.message);
    await this.#deps.driver.discardCheckpoint(this.#row.vmId);
  }

  /** What the machine had of the host is given back. */
  async #rest(to: SandboxState, change: SandboxChange, cause: string): Promise<void> {
    const { driver, slots, capacity } = this.#deps;
    const { slot } = this.#row;
    capacity.release(this.id); // Who sees that it rests may count on its room.
    await this.#sandbox.enter(to, { ...change, slot: undefined, expiresAt: undefined }, cause);
    this.#session = undefined; // Not before: what cannot be journalled now is reported again.
    // Only now: until it was journalled, what tells how it ended had to stay.
    await driver.reclaim(this.#row.vmId);
    // The next session has another one.
    if (slot !== undefined) runInBackground('slot.release', () => slots.release(slot));
  }

  /** What could not be ended, brought up or paused in time is ended by force. */
  #watch(ms: number): void {
    clearTimeout(this.#watchdog);
    this.#watchdog = setTimeout(() => {
      const session = this.#session;
      if (session === undefined || !isTransitional(this.#row.state)) return;
      const { log, driver } = this.#deps;
      log.error({ sandboxId: this.id, state: this.#row.state }, 'sandbox:overdue');
      session.abort(new BootError('boot_timeout', LATE));
      this.#report(session, async () => {
        await driver.reclaim(this.#row.vmId);
        await this.#handleOverdue();
      });
    }, ms);
    this.#watchdog.unref();
  }

  async #handleOverdue(): Promise<void> {
    const { state } = this.#row;
    if (state === 'stopping') {
      return this.#finish({ reason: 'stop_forced', message: 'it did not stop in time' });
    }
    if (state === 'pausing') {
      return this.#handleEnded({ reason: 'vmm_crashed', message: 'it did not pause in time' });
    }
    await this.#handleNotUp(new BootError('boot_timeout', LATE));
  }

  async #recover(): Promise<void> {
    const { state, isDeleting, slot } = this.#row;
    const { capacity } = this.#deps;
    if (isDeleting) return this.#delete();
    await this.#execs.load();
    if (slot === undefined) return this.#recoverAtRest();
    capacity.keep(this.id, this.#row.config);
    if (state === 'pending_start' || state === 'pending_resume') return this.#recoverPending();
    if (state === 'pausing' && (await this.#deps.driver.hasCheckpoint(this.#row.vmId))) {
      return this.#handlePaused();
    }
    await this.#takeOver();
  }

  /** Whether a checkpoint is still good is found out when it is to be resumed, and told then. */
  async #recoverAtRest(): Promise<void> {
    const { driver } = this.#deps;
    await driver.reclaim(this.#row.vmId);
    const isPaused = this.#row.state === 'paused';
    if (!isPaused) await driver.discardCheckpoint(this.#row.vmId);
    await this.#execs.loseAll(
      isPaused ? 'cancelled' : 'failed',
      isPaused ? PAUSED : 'the sandbox ended',
    );
  }

  /** It had not run yet, so it is brought up again, unless its checkpoint was about to be used. */
  async #recoverPending(): Promise<void> {
    const { driver } = this.#deps;
    await driver.reclaim(this.#row.vmId);
    if (this.#row.state === 'pending_start' || (await driver.hasCheckpoint(this.#row.vmId))) {
      return this.#bringUp();
    }
    const message = 'the agent of the host ended while the checkpoint was used up';
    await this.#finish({ reason: 'resume_failed', message });
  }

  /** A machine that was running when the former agent ended: it runs on, or has ended since. */
  async #takeOver(): Promise<void> {
    const { driver, slots, log } = this.#deps;
    const session = new MachineSession();
    this.#session = session;
    const found = await driver.recover(await machineSpec(this.#row, slots));
    if ('reason' in found) return this.#finish(found);
    this.#follow(session, found);
    if (this.#row.state === 'stopping') {
      this.#sandbox.noticeEntered('taken over while it was to stop');
      return this.#beginStop();
    }
    this.#execs.attach(found.guest);
    if (this.#row.state === 'pausing') {
      await found.goOn();
      return this.#runOn('it could not be paused: the agent of the host ended meanwhile');
    }
    // It may have been forked just then; a guest that does not answer holds only itself up.
    const goingOn = found.goOn();
    goingOn.catch((error: unknown) => {
      log.warn({ sandboxId: this.id, err: toError(error) }, 'sandbox:notGoneOn');
    });
    this.#waitForCopy(goingOn);
    this.#sandbox.noticeEntered('taken over');
    this.#sandbox.countIdleOn();
  }

  /** Intent first; then what others see of it; then what it is made of; its row at the very end. */
  async #delete(): Promise<void> {
    const { journal, driver, slots, capacity } = this.#deps;
    const { slot } = this.#row;
    clearTimeout(this.#watchdog);
    await this.#sandbox.beginDelete();
    await step('reclaim machine', () => driver.reclaim(this.#row.vmId));
    await this.#leavePause();
    await this.#execs.removeAll();
    await step('remove disk', () => driver.remove(this.#row.vmId));
    await step('journal deleted', () => journal.remove(this.id));
    if (slot !== undefined) await slots.release(slot);
    capacity.release(this.id);
    this.#deps.log.info({ sandboxId: this.id }, 'sandbox:deleted');
  }

  /** It could not be taken up again: it is ended, and can be started or deleted. */
  async giveUp(error: Error): Promise<void> {
    await this.#mailbox.send(async () => {
      if (this.#row.isDeleting || this.#row.slot === undefined) return;
      await this.#deps.driver.reclaim(this.#row.vmId);
      const message = `the host could not take it over: ${error.message}`;
      await this.#finish({ reason: 'vmm_crashed', message });
    });
  }
}
