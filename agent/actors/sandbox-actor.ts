import { randomUUID } from 'node:crypto';
import { AppError, toError } from '../../shared/errors.ts';
import { LIMITS } from '../../shared/limits.ts';
import type { Logger } from '../../shared/log.ts';
import {
  assertTransition,
  isTransitional,
  type SandboxCommand,
  type SandboxState,
  type Verdict,
  verdictOn,
} from '../../shared/sandbox-lifecycle.ts';
import type { SandboxExecRecord, SandboxRecord } from '../../shared/schemas/sandbox-record.ts';
import { settledWithin } from '../../shared/settled-within.ts';
import type { SandboxJournal, SandboxRow } from '../journal/sandbox-journal.ts';
import type { SlotPool } from '../network/slot-pool.ts';
import {
  BootError,
  type Machine,
  type MachineEnd,
  type MachineSpec,
  type RuntimeDriver,
} from '../runtimes/driver.ts';
import type { BootTurns } from '../sandboxes/boot-turns.ts';
import type { HostCapacity } from '../sandboxes/host-capacity.ts';
import type { SandboxPublisher } from '../sandboxes/publisher.ts';
import type { ExecWithOutput, SandboxExecs, SandboxExecSpec } from '../sandboxes/sandbox-execs.ts';
import { step } from '../step.ts';
import { Mailbox } from './mailbox.ts';

export interface SandboxActorDeps {
  readonly hostId: string;
  readonly platform: SandboxRecord['platform'];
  readonly journal: SandboxJournal;
  readonly driver: RuntimeDriver;
  readonly slots: SlotPool;
  readonly capacity: HostCapacity;
  readonly boots: BootTurns;
  readonly publisher: SandboxPublisher;
  readonly bootTimeoutMs: number;
  readonly log: Logger;
}

/** From one start to the end of its machine; what comes late from a former one is told by it. */
interface Session {
  readonly abort: AbortController;
  /** Settles when nothing boots any more. */
  booted: Promise<unknown>;
  machine: Machine | undefined;
}

const newSession = (): Session => ({
  abort: new AbortController(),
  booted: Promise.resolve(),
  machine: undefined,
});

type Change = Partial<
  Pick<
    SandboxRow,
    'slot' | 'bootId' | 'runningAt' | 'finishedAt' | 'exitReason' | 'exitMessage' | 'isDeleting'
  >
>;

const STOPPED: MachineEnd = { reason: 'stopped', message: 'stopped before it ran' };
/** Uses are written down together: a sandbox may see many of them. */
const TOUCHED_WRITTEN_AFTER_MS = 5_000;

/**
 * The life of one sandbox (`shared/sandbox-lifecycle.ts`). It is what the journal says; commands are
 * handled one at a time, and what takes long runs beside them and reports back as a message.
 */
export class SandboxActor {
  readonly #deps: SandboxActorDeps;
  readonly #execs: SandboxExecs;
  readonly #mailbox = new Mailbox();
  #row: SandboxRow;
  #session: Session | undefined;
  #watchdog: NodeJS.Timeout | undefined;
  #touched: NodeJS.Timeout | undefined;
  #isDetached = false;
  readonly #changeWaiters = new Set<() => void>();

  constructor(deps: SandboxActorDeps, row: SandboxRow, execs: SandboxExecs) {
    this.#deps = deps;
    this.#row = row;
    this.#execs = execs;
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

  /** As it is published. */
  get record(): SandboxRecord {
    const { id, accountId, config, state, revision, createdAt, lastActiveAt } = this.#row;
    const { runningAt, finishedAt, exitReason, exitMessage } = this.#row;
    const { hostId, platform } = this.#deps;
    return {
      ...{ id, accountId, hostId, config, state, platform, createdAt, lastActiveAt },
      ...(runningAt === undefined ? {} : { runningAt }),
      ...(finishedAt === undefined ? {} : { finishedAt }),
      ...(exitReason === undefined ? {} : { exitReason }),
      ...(exitMessage === undefined ? {} : { exitMessage }),
      revision,
    };
  }

  /**
   * Journals the sandbox and begins to start it.
   * @throws AppError `no_capacity`, `host_full`; nothing of it is left then
   */
  async create(): Promise<void> {
    await this.#mailbox.send(async () => {
      const { capacity, slots, journal } = this.#deps;
      capacity.hold(this.id, this.#row.config);
      try {
        const { index } = await slots.lease();
        try {
          this.#row = { ...this.#row, slot: index };
          await step('journal create', () => journal.insert(this.#row));
        } catch (error) {
          await slots.release(index);
          throw error;
        }
      } catch (error) {
        capacity.release(this.id);
        throw error;
      }
      this.#noticeEntered('created');
      this.#start();
    });
    await this.#publish();
  }

  /** Goes on where a former agent was ended. */
  async recover(): Promise<void> {
    await this.#mailbox.send(() => this.#recover());
    await this.#publish();
  }

  /** Says again what it is: the directory has lost it. */
  async republish(): Promise<void> {
    await this.#publish();
  }

  /** @throws AppError with the verdict's code, `no_capacity`, `host_full` */
  async start(): Promise<void> {
    await this.#command('start', async () => {
      this.#deps.capacity.hold(this.id, this.#row.config);
      try {
        await this.#beginStart('start was asked for');
      } catch (error) {
        this.#deps.capacity.release(this.id);
        throw error;
      }
    });
  }

  /** The guest may end in order; after the grace time it is killed. @throws AppError */
  async stop(): Promise<void> {
    await this.#command('stop', async () => {
      await this.#enter('stopping', {}, 'stop was asked for');
      this.#beginStop();
    });
  }

  /** Deletes it and its disk. @throws AppError `sandbox_not_stopped` */
  async delete(): Promise<void> {
    await this.#mailbox.send(async () => {
      if (this.#row.isDeleting) return;
      this.#judge('delete');
      await this.#delete();
    });
  }

  /** Takes it back, whatever it is at: its creator was told that there is none. */
  async discard(): Promise<void> {
    await this.#mailbox.send(async () => {
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
      this.#touch();
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

  /** Resolves when it is in no transition, or after that time. */
  async settled(waitMs: number): Promise<void> {
    const until = Date.now() + waitMs;
    while (isTransitional(this.#row.state) && !this.#isDetached && Date.now() < until) {
      const { promise, resolve } = Promise.withResolvers<void>();
      this.#changeWaiters.add(resolve);
      await settledWithin(promise, until - Date.now());
      this.#changeWaiters.delete(resolve);
    }
  }

  /** Lets go of it: its machine runs on. Nothing is journalled or published from here on. */
  async detach(): Promise<void> {
    this.#isDetached = true;
    for (const resolve of this.#changeWaiters) resolve();
    clearTimeout(this.#watchdog);
    clearTimeout(this.#touched);
    await this.#leaveSession('the agent ends');
    await this.#execs.detach();
  }

  /** What boots is ended; what runs goes on. */
  async #leaveSession(reason: string): Promise<void> {
    const session = this.#session;
    this.#session = undefined;
    session?.abort.abort(new Error(reason));
    await session?.booted;
    session?.machine?.detach();
  }

  /** What the command comes to now. @throws AppError when it is refused */
  #judge(command: SandboxCommand): Verdict {
    if (this.#row.isDeleting) throw new AppError('not_found', 'there is no such sandbox');
    const verdict = verdictOn(this.#row.state, command);
    if (verdict.kind !== 'refuse') return verdict;
    const state = this.#row.state.replace('_', ' ');
    throw new AppError(verdict.code, `the sandbox is ${state}: ${command} is not possible now`);
  }

  async #command(command: SandboxCommand, begin: () => Promise<void>): Promise<void> {
    await this.#mailbox.send(async () => {
      if (this.#judge(command).kind !== 'begin') return;
      this.#touch();
      await begin();
    });
    await this.#publish();
  }

  #touch(): void {
    this.#row = { ...this.#row, lastActiveAt: new Date().toISOString() };
    this.#touched ??= setTimeout(
      () => void this.#mailbox.send(() => this.#saveTouched()),
      TOUCHED_WRITTEN_AFTER_MS,
    );
  }

  async #saveTouched(): Promise<void> {
    this.#touched = undefined;
    if (this.#isDetached || this.#row.isDeleting) return;
    const row = { ...this.#row, revision: this.#row.revision + 1 };
    await this.#deps.journal.save(row);
    this.#row = row;
    void this.#publish();
  }

  /** The one gate through which its state changes: journal, memory, those who wait, directory. */
  async #enter(to: SandboxState, change: Change, cause: string): Promise<void> {
    assertTransition(this.#row.state, to);
    const row = { ...this.#row, ...change, state: to, revision: this.#row.revision + 1 };
    await step(`journal ${to}`, () => this.#deps.journal.save(row));
    this.#row = row;
    this.#noticeEntered(cause);
    void this.#publish();
  }

  #noticeEntered(cause: string): void {
    const { id, accountId, state } = this.#row;
    this.#deps.log.info({ sandboxId: id, accountId, state, cause }, 'sandbox:transitioned');
    clearTimeout(this.#watchdog);
    if (state === 'stopping') {
      this.#watch(LIMITS.sandboxStopGraceMs + 2 * LIMITS.sandboxKillMsMax);
    }
    for (const resolve of this.#changeWaiters) resolve();
  }

  async #publish(): Promise<void> {
    // What is on its way out is not to be seen again.
    if (this.#isDetached || this.#row.isDeleting) return;
    await this.#deps.publisher.publish(this.record);
  }

  async #beginStart(cause: string): Promise<void> {
    const { slots } = this.#deps;
    const { index } = await slots.lease();
    try {
      await this.#enter(
        'pending_start',
        {
          slot: index,
          bootId: randomUUID(),
          runningAt: undefined,
          finishedAt: undefined,
          exitReason: undefined,
          exitMessage: undefined,
        },
        cause,
      );
    } catch (error) {
      await slots.release(index);
      throw error;
    }
    this.#start();
  }

  /** Beside the mailbox: from the turn to boot to the end of the machine. */
  #start(): void {
    const session = newSession();
    this.#session = session;
    const boot = this.#boot(session);
    session.booted = boot.catch(toError);
    boot.then(
      (machine) => this.#report(session, () => this.#handleBooted(session, machine)),
      (error: unknown) => this.#report(session, () => this.#handleNotBooted(toError(error))),
    );
  }

  async #boot(session: Session): Promise<Machine> {
    const { boots, driver } = this.#deps;
    const { signal } = session.abort;
    const endTurn = await boots.take(signal);
    try {
      this.#watch(this.#deps.bootTimeoutMs + LIMITS.sandboxKillMsMax);
      await driver.prepare(this.id, this.#row.uid);
      const machine = await driver.start(await this.#machineSpec(), signal);
      session.machine = machine;
      return machine;
    } finally {
      endTurn();
    }
  }

  async #machineSpec(): Promise<MachineSpec> {
    const { id, uid, slot, config, bootId, environment } = this.#row;
    if (slot === undefined) throw new Error('a machine without a network slot');
    return {
      id,
      uid,
      vcpuCount: config.vcpuCount,
      memSizeMib: config.memSizeMib,
      slot: await this.#deps.slots.take(slot),
      settings: { hostname: config.name, machineId: id, bootId, environment },
    };
  }

  /** A message from beside the mailbox; what a former session still says is nothing to this one. */
  #report(session: Session, handle: () => Promise<void>): void {
    const message = async (): Promise<void> => {
      if (this.#session === session && !this.#isDetached) await handle();
    };
    this.#mailbox.send(message).catch((error: unknown) => {
      this.#deps.log.error({ sandboxId: this.id, err: toError(error) }, 'sandbox:failed');
    });
  }

  async #handleBooted(session: Session, machine: Machine): Promise<void> {
    this.#follow(session, machine);
    if (this.#row.state === 'pending_start') {
      await this.#enter('running', { runningAt: new Date().toISOString() }, 'the guest is ready');
      this.#execs.attach(machine.guest);
    } else {
      this.#beginStop(); // It came up although it was to stop.
    }
  }

  async #handleNotBooted(error: Error): Promise<void> {
    if (this.#row.state === 'stopping') return this.#finish(STOPPED);
    const reason = error instanceof BootError ? error.reason : 'boot_failed';
    await this.#finish({ reason, message: error.message });
  }

  #follow(session: Session, machine: Machine): void {
    session.machine = machine;
    void machine.ended.then((end) => this.#report(session, () => this.#finish(end)));
  }

  /** Ends the machine, or keeps it from coming up; `#finish` follows. */
  #beginStop(): void {
    const session = this.#session;
    if (session === undefined) return;
    this.#execs.expectStop();
    session.abort.abort(new Error('the sandbox is to stop'));
    void session.machine?.stop(LIMITS.sandboxStopGraceMs);
  }

  /** Nothing of the machine runs any more. */
  async #finish(end: MachineEnd): Promise<void> {
    this.#session = undefined;
    const wasStopping = this.#row.state === 'stopping';
    const isShutdown = end.reason === 'guest_shutdown';
    const to = wasStopping ? 'stopped' : isShutdown ? 'exited' : 'failed';
    const status = to === 'stopped' ? 'cancelled' : 'failed';
    await this.#execs.loseAll(status, `the sandbox ${to === 'stopped' ? 'was stopped' : 'ended'}`);
    const { slot } = this.#row;
    const change = {
      slot: undefined,
      finishedAt: new Date().toISOString(),
      exitReason: end.reason,
      exitMessage: end.message.slice(0, LIMITS.sandboxExitMessageLengthMax),
    };
    await this.#enter(to, change, end.message);
    if (slot !== undefined) await this.#deps.slots.release(slot);
    this.#deps.capacity.release(this.id);
  }

  /** What could not be ended or brought up in time is ended by force. */
  #watch(ms: number): void {
    clearTimeout(this.#watchdog);
    this.#watchdog = setTimeout(() => {
      const session = this.#session;
      if (session === undefined || !isTransitional(this.#row.state)) return;
      const { log, driver } = this.#deps;
      log.error({ sandboxId: this.id, state: this.#row.state }, 'sandbox:overdue');
      session.abort.abort(new BootError('boot_timeout', 'it did not come up in time'));
      this.#report(session, async () => {
        await driver.reclaim(this.id);
        const stopped: MachineEnd = { reason: 'stop_forced', message: 'it did not stop in time' };
        const late: MachineEnd = { reason: 'boot_timeout', message: 'it did not come up in time' };
        await this.#finish(this.#row.state === 'stopping' ? stopped : late);
      });
    }, ms);
    this.#watchdog.unref();
  }

  async #recover(): Promise<void> {
    const { state, isDeleting, slot } = this.#row;
    const { capacity, driver } = this.#deps;
    if (isDeleting) return this.#delete();
    await this.#execs.load();
    if (slot === undefined) {
      await driver.reclaim(this.id);
      return this.#execs.loseAll('failed', 'the sandbox ended');
    }
    capacity.keep(this.id, this.#row.config);
    if (state === 'pending_start') {
      await driver.reclaim(this.id);
      return this.#start();
    }
    await this.#takeOver();
  }

  /** A machine that was running when the former agent ended: it runs on, or has ended since. */
  async #takeOver(): Promise<void> {
    const session = newSession();
    this.#session = session;
    const found = await this.#deps.driver.recover(await this.#machineSpec());
    if ('reason' in found) return this.#finish(found);
    this.#follow(session, found);
    if (this.#row.state === 'stopping') {
      this.#noticeEntered('taken over while it was to stop');
      return this.#beginStop();
    }
    this.#execs.attach(found.guest);
    this.#noticeEntered('taken over');
  }

  /** Intent first; then what others see of it; then what it is made of; its row at the very end. */
  async #delete(): Promise<void> {
    const { journal, publisher, driver, slots, capacity } = this.#deps;
    clearTimeout(this.#watchdog);
    clearTimeout(this.#touched);
    const row = { ...this.#row, isDeleting: true, revision: this.#row.revision + 1 };
    await step('journal delete', () => journal.save(row));
    this.#row = row;
    await publisher.remove(this.record);
    await step('reclaim machine', () => driver.reclaim(this.id));
    await this.#execs.removeAll();
    await step('remove disk', () => driver.remove(this.id));
    await step('journal deleted', () => journal.remove(this.id));
    if (row.slot !== undefined) await slots.release(row.slot);
    capacity.release(this.id);
    this.#deps.log.info({ sandboxId: this.id }, 'sandbox:deleted');
  }

  /** It could not be taken up again: it is ended, and can be started or deleted. */
  async giveUp(error: Error): Promise<void> {
    await this.#mailbox.send(async () => {
      if (this.#row.isDeleting || this.#row.slot === undefined) return;
      await this.#deps.driver.reclaim(this.id);
      const message = `the host could not take it over: ${error.message}`;
      await this.#finish({ reason: 'vmm_crashed', message });
    });
  }
}
