import { randomUUID } from 'node:crypto';
import { AppError, toError } from '../../../shared/errors.ts';
import { SANDBOX_LIMITS } from '../limits.ts';
import type { SandboxUsage } from '../../../shared/jobs/sandbox-kinds.ts';
import type { NetworkDecision } from '../../../shared/schemas/network-decision.ts';
import type { NetworkPolicy } from '../../../shared/schemas/network-policy.ts';
import type { SandboxProcess } from '../../../shared/schemas/sandbox-process.ts';
import type { SandboxMount } from '../../../shared/schemas/sandbox-mount.ts';
import type { SandboxExecRecord, SandboxRecord } from '../../../shared/schemas/sandbox-record.ts';
import type { SandboxState } from '../../../shared/sandbox-lifecycle.ts';
import { settledWithin } from '../../../shared/settled-within.ts';
import type { NameAddresses, SandboxRow } from '../../system/journal/sandbox-journal.ts';
import { Mailbox } from '../../system/queues/mailbox.ts';
import { ActionGate } from './action-gate.ts';
import { CopyGate, copyMsMax } from './copy-gate.ts';
import { CurrentRun } from './current-run.ts';
import type { ExecWithOutput, SandboxExecs, SandboxExecSpec } from '../execs/sandbox-execs.ts';
import type { SandboxProcesses } from '../processes/sandbox-processes.ts';
import { ProcessError } from '../processes/process-error.ts';
import type { DependentForks } from '../holds/fork-tree.ts';
import { ImageWait } from './image-wait.ts';
import { awaitImage, beginImageWait, lacksImage, stopImageWait } from './wait-for-image.ts';
import { forgetTakenOver, releaseSandbox } from './leave-host.ts';
import { JournalledSandbox, type NewLimits, type SandboxChange } from './journalled-sandbox.ts';
import { SandboxUses } from './sandbox-uses.ts';
import type { MachineOwner } from '../../machines/driver.ts';
import type { SandboxActorDeps, SandboxContext } from './sandbox-context.ts';
import {
  type Copied,
  admitSandbox,
  type Creation,
  type Inherited,
  removeUncreated,
} from './admit-sandbox.ts';
import { SandboxDeletion } from './sandbox-deletion.ts';
import { endOverdueTransition, handleMachineEvent } from './sandbox-events.ts';
import { PauseDrain } from './pause-drain.ts';
import { releaseDisks } from './sandbox-cleanup.ts';
import { nameAddresses, replacePolicy } from './sandbox-network.ts';
import { beginDrainOrPause, beginPause, cancelPause } from './sandbox-pause.ts';
import { giveUpAtLast, recoverSandbox } from './recover-sandbox.ts';
import { beginStop, newDiskCheckpoint, stopPaused } from './sandbox-rest.ts';
import { beginStart, startMachine, type StartState } from './sandbox-start.ts';
import { StartClock } from './start-clock.ts';
import { trustVariables } from '../holds/trust-authority.ts';
import { TransitionWatchdog } from './transition-watchdog.ts';

const PAUSE = 'pause was asked for';
const STOP = 'stop was asked for';
const RESTARTS = 'the host restarts; attach again';
const TAKEN = 'the sandbox went on at another host, which took this one for lost; attach again';
const NOT_CONTINUED = 'it did not continue in time after a fork, so the host ended it';

/** The commands of the REST API and the processes that clients attach to in a sandbox. */
export interface SandboxRuns {
  readonly execs: SandboxExecs;
  readonly processes: SandboxProcesses;
}

/**
 * The lifecycle of one sandbox (`shared/sandbox-lifecycle.ts`). Its journal row is the truth.
 * Messages are handled one at a time; long work runs outside the mailbox and reports back with a
 * message.
 */
export class SandboxActor {
  readonly #mailbox = new Mailbox();
  readonly #context: SandboxContext;
  readonly #gate: ActionGate;
  #isNetworkChanging = false;
  readonly #deletion: SandboxDeletion;
  #uncreated: Promise<void> = Promise.resolve();

  constructor(deps: SandboxActorDeps, row: SandboxRow, { execs, processes }: SandboxRuns) {
    const sandbox = new JournalledSandbox(deps, row, {
      entered: () => {
        context.watchdog.watch(this.row);
        deps.stateEntered?.(this.row);
        if (this.row.state !== 'draining') context.drain.cancel();
      },
      limitReached: () => this.#handleLimit(),
      send: (write) => this.#mailbox.send(write),
    });
    const uses = new SandboxUses(sandbox);
    const context: SandboxContext = {
      ...{ deps, sandbox, uses, execs, processes, imageWait: new ImageWait() },
      copies: new CopyGate(deps.storage),
      drain: new PauseDrain(deps),
      send: (handle) => this.#mailbox.send(handle),
      watchdog: new TransitionWatchdog(deps.storage, () => endOverdueTransition(context)),
      current: new CurrentRun({
        ...{ sandboxId: row.id, mailbox: this.#mailbox, log: deps.log },
        handle: (event) => handleMachineEvent(context, event),
      }),
    };
    this.#context = context;
    this.#gate = new ActionGate(this.#mailbox, context);
    this.#deletion = new SandboxDeletion(context);
    execs.holdBy(() => uses.runningCommand());
    processes.useBy({
      attachedClient: () => uses.attachedClient(),
      fileRequest: () => uses.fileRequest(),
      input: () => uses.input(),
      environment: () => trustVariables(this.row),
    });
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

  /** The sandbox as it is published. */
  get record(): SandboxRecord {
    return this.#context.sandbox.record;
  }

  /** Whether its deletion has begun; parts of it may still exist. */
  get isDeleted(): boolean {
    return this.row.isDeleting;
  }

  /** Resolves when its deletion has removed everything. */
  get removed(): Promise<void> {
    return this.#deletion.done;
  }

  /** Resolves when nothing is left of a failed creation, so that its uid can be reused. */
  get uncreated(): Promise<void> {
    return this.#uncreated;
  }

  /**
   * Journals the sandbox and begins to start it.
   * @throws AppError `no_capacity`, `host_full`; what `copy` throws. Only {@link hasLeftovers}
   *   remain
   */
  async create(creation: Creation = {}): Promise<void> {
    await this.#mailbox.send(async () => {
      const clock = new StartClock();
      try {
        await admitSandbox(this.#context, creation);
      } catch (error) {
        this.#uncreated = (await removeUncreated(this.#context, creation)).removed;
        throw error;
      }
      if (this.row.state === 'pending_image') awaitImage(this.#context);
      else startMachine(this.#context, clock);
    });
    await this.#context.sandbox.publishNew();
  }

  /**
   * Continues where a former agent ended. A machine that cannot be recovered is ended. Publish it
   * then ({@link republish}).
   */
  async recover(): Promise<void> {
    const { sandbox, deps } = this.#context;
    sandbox.markJournalled();
    await this.#mailbox.send(async () => {
      if (this.isDeleted) return this.#deletion.resume();
      try {
        await recoverSandbox(this.#context);
      } catch (error) {
        deps.log.error({ sandboxId: this.id, err: toError(error) }, 'sandbox:recoverFailed');
        await giveUpAtLast(this.#context, toError(error));
      }
    });
  }

  /** Publishes the sandbox as it is: after a recovery, or when the directory has lost it. */
  async republish(): Promise<void> {
    await this.#context.sandbox.publish();
  }

  /**
   * Boots from the disk and discards a checkpoint, or cancels a pause that waits for requests.
   * @param mounts replace those that it had; undefined: they stay
   * @param copyHook replaces the hook of its copies, also of a sandbox that runs already
   * @throws AppError the verdict’s code, `no_capacity`, `host_full`, `disk_in_use`;
   *   `sandbox_mounts_while_active` for mounts of a sandbox that runs or starts already
   */
  async start(mounts?: readonly SandboxMount[], copyHook?: string): Promise<void> {
    const unchanged = async (): Promise<void> => {
      if (mounts === undefined) {
        if (copyHook !== undefined) await this.#context.sandbox.setCopyHook(copyHook);
        return;
      }
      const message = 'mounts can be replaced only when the sandbox starts: stop it first';
      throw new AppError('sandbox_mounts_while_active', message);
    };
    const begin = async (to: SandboxState | 'deleted'): Promise<void> => {
      if (to === 'running') {
        await unchanged();
        return cancelPause(this.#context, 'start was asked for');
      }
      const replaced = this.#withChanges(mounts, copyHook);
      // A paused sandbox holds its image.
      if (this.row.state !== 'paused' && (await lacksImage(this.#context)))
        return beginImageWait(this.#context, 'start was asked for', replaced);
      // The run removes the checkpoint's files before it boots the machine.
      const change = { checkpoint: undefined, bootId: randomUUID(), ...replaced };
      await beginStart(this.#context, 'pending_start', change, 'start was asked for');
    };
    await this.#gate.act('start', begin, unchanged);
  }

  /**
   * Continues from its checkpoint, or cancels a pause that waits for requests.
   * @throws AppError the verdict’s code, `no_capacity`, `host_full`
   */
  async resume(): Promise<void> {
    const cause = 'resume was asked for';
    await this.#gate.act('resume', (to) =>
      to === 'running'
        ? cancelPause(this.#context, cause)
        : beginStart(this.#context, 'pending_resume', {}, cause),
    );
  }

  /**
   * Saves the memory in a checkpoint and ends the machine, once the requests are over that its
   * network policy names.
   * @throws AppError the verdict’s code
   */
  async pause(): Promise<void> {
    const begin = (): Promise<void> => beginDrainOrPause(this.#context, PAUSE, true);
    await this.#gate.act('pause', begin, () => this.#context.drain.ask());
  }

  /** The same whatever requests are in progress. @throws AppError the verdict’s code */
  async pauseNow(): Promise<void> {
    const begin = (): Promise<void> => beginPause(this.#context, PAUSE);
    await this.#gate.act('pause', begin, async () => {
      if (this.row.state === 'draining') await begin();
    });
  }

  /** Has a paused sandbox let go of its disks, as far as it can. */
  async releaseDisks(): Promise<void> {
    await this.#mailbox.send(async () => {
      if (this.row.state === 'paused') await releaseDisks(this.#context);
    });
  }

  /** Shuts the guest down; kills it after the grace time. @throws AppError the verdict’s code */
  async stop(): Promise<void> {
    await this.#gate.act('stop', async (to) => {
      if (this.row.state === 'pending_image') return stopImageWait(this.#context);
      if (to === 'stopped') return stopPaused(this.#context);
      await this.#context.sandbox.enter('stopping', await newDiskCheckpoint(this.#context), STOP);
      beginStop(this.#context);
    });
  }

  /**
   * Copies the disk, and the memory if there is any, for a sandbox that does not exist yet.
   * @param checkpoint the checkpoint that this sandbox must show; undefined: any
   * @param begin reads what the copy inherits, or refuses it, once it may begin
   * @throws AppError the verdict’s code, `sandbox_start_conflict` for another checkpoint,
   *   `unavailable` when machine or guest do not answer; what `begin` throws
   */
  async fork(
    child: MachineOwner,
    checkpoint: string | undefined,
    begin: () => Inherited,
  ): Promise<Copied> {
    // The mailbox keeps handling other messages than actions, such as the end of the machine.
    const { copied, inherited } = await this.#gate.send(async () => {
      this.#gate.judge('fork');
      if (checkpoint !== undefined && checkpoint !== this.row.checkpoint) {
        const message = 'the sandbox has another checkpoint now: it went on meanwhile';
        throw new AppError('sandbox_start_conflict', message);
      }
      const inherits = begin();
      this.#context.uses.fork();
      return { copied: this.#copyTo(child), inherited: inherits };
    });
    const state = await copied;
    // Read after the memory was copied, which may know all of them by then.
    const known = await this.nameAddresses();
    return { state, inherited: { ...inherited, nameAddresses: known } };
  }

  /**
   * Like {@link fork}, but the copy never runs.
   * @param begin journals the intent, once the copy may begin
   * @returns `copied` settles when the copy is complete, with the state in which copies of it start
   * @throws AppError the verdict’s code; what `begin` throws
   */
  async snapshot(
    copy: MachineOwner,
    begin: () => Promise<void>,
  ): Promise<{ copied: Promise<StartState> }> {
    return this.#gate.send(async () => {
      this.#gate.judge('snapshot');
      this.#context.uses.snapshot();
      await begin();
      return { copied: this.#copyTo(copy) };
    });
  }

  /**
   * Sets the time limits of the present run and of later ones.
   * @throws AppError `bad_request`
   */
  async setLimits(limits: NewLimits): Promise<void> {
    await this.#mailbox.send(async () => {
      this.#gate.refuseIfDeleted();
      await this.#context.sandbox.setLimits(limits);
    });
    await this.#context.sandbox.publish();
  }

  /**
   * Replaces the network policy; new connections follow it at once.
   * @throws AppError `sandbox_not_running`, `sandbox_network_conflict` while another one is set,
   *   `not_enabled`, `unavailable` when the former one still counts
   */
  async setNetwork(policy: NetworkPolicy): Promise<void> {
    if (this.#isNetworkChanging) {
      const message = 'another network policy of the sandbox is being set; try again';
      throw new AppError('sandbox_network_conflict', message);
    }
    this.#isNetworkChanging = true;
    try {
      await this.#gate.send(async () => {
        this.#gate.judge('network');
        await replacePolicy(this.#context, policy);
      });
    } finally {
      this.#isNetworkChanging = false;
    }
    await this.#context.sandbox.publish();
  }

  /** The addresses of its policy's names that its memory may know. */
  nameAddresses(): Promise<NameAddresses | undefined> {
    return nameAddresses(this.#context);
  }

  /** Decisions about the sandbox's connections. */
  decisions(): Promise<NetworkDecision[]> {
    return this.#context.deps.policies.decisions(this.id);
  }

  /** The sandbox's current usage: of a machine only while one runs. */
  async usage(): Promise<SandboxUsage> {
    const { current, deps } = this.#context;
    const [machine, storedBytes] = await Promise.all([
      current.machine?.usage() ?? {},
      deps.driver.storedBytes(this.#context.sandbox.row.vmId),
    ]);
    return { ...machine, storedBytes };
  }

  /**
   * Starts it from its disk after its host was lost while it ran.
   * @throws AppError as {@link start}
   */
  async startAfterLoss(): Promise<void> {
    await this.#gate.act('start', async () => {
      const change = {
        checkpoint: undefined,
        bootId: randomUUID(),
        exitReason: 'host_lost',
      } as const;
      await beginStart(this.#context, 'pending_start', change, 'its host was lost');
    });
  }

  /**
   * Releases the sandbox to other hosts if it is at rest.
   * @param isWanted asked when it is this call's turn
   * @returns whether it is released
   */
  async release(isWanted: () => boolean): Promise<boolean> {
    return this.#gate.send(async () => isWanted() && releaseSandbox(this.#context));
  }

  /** Ends and forgets the sandbox, which another host has taken. May be repeated when it fails. */
  async forgetTakenOver(): Promise<void> {
    await forgetTakenOver(this.#context, () => this.detach(TAKEN));
  }

  /** Whether its machine's directory must be on this host. */
  get isPlaced(): boolean {
    const { sandbox } = this.#context;
    return sandbox.isJournalled && this.row.uid >= 0 && !this.row.isDeleting && !sandbox.hasMoved;
  }

  /** Whether another host has it, or may have. */
  get hasMoved(): boolean {
    return this.#context.sandbox.hasMoved;
  }

  /** Records uses of the sandbox, which keep it from being idle. */
  get uses(): SandboxUses {
    return this.#context.uses;
  }

  /**
   * Deletes the sandbox and its disk, unless it has forks.
   * @returns the forks that must be deleted first; undefined when the deletion has begun
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

  /** Deletes the sandbox in any state, because its creation was reported as failed. */
  async discard(): Promise<void> {
    await this.#gate.send(async () => {
      if (!this.isDeleted) await this.#deletion.begin();
    });
  }

  /**
   * Runs a command; resolves when it runs, or could not be started.
   * @returns `ended` settles when the command has ended
   */
  async exec(spec: SandboxExecSpec): Promise<{ ended: Promise<unknown> }> {
    const begun = await this.#mailbox.send(async () => {
      this.#gate.judge('exec');
      this.#context.uses.command();
      const environment = { ...trustVariables(this.row), ...spec.environment };
      // Not awaited here: a slow guest must not delay a stop.
      return { exec: this.#context.execs.begin({ ...spec, environment }) };
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
      this.#context.uses.connection();
      return this.#context.processes;
    });
  }

  /**
   * The processes that clients attach to. Whoever lists them does not use the sandbox.
   * @throws AppError `sandbox_not_running`, `unavailable` when the guest does not answer
   */
  async processes(): Promise<SandboxProcess[]> {
    await this.#mailbox.send(async () => this.#gate.judge('connect'));
    try {
      return await this.#context.processes.list();
    } catch (error) {
      if (!(error instanceof ProcessError)) throw error;
      const code = error.code === 'sandbox_not_running' ? error.code : 'unavailable';
      throw new AppError(code, error.message, { cause: error });
    }
  }

  /** Resolves when every action requested so far has begun. */
  async begun(): Promise<void> {
    await this.#gate.send(async () => undefined);
  }

  /**
   * The sandbox as it is now, once the directory shows it so, or after a second: who is answered
   * with it finds it there.
   */
  publishedRecord(): Promise<SandboxRecord> {
    return this.#context.sandbox.publishedRecord();
  }

  /** Resolves when the sandbox is in no transition, or after `waitMs`. */
  settled(waitMs: number): Promise<void> {
    return this.#context.sandbox.settled(waitMs);
  }

  /**
   * Detaches from the machine, which keeps running. Journals nothing but its last use from now on,
   * and publishes nothing.
   */
  async detach(why = RESTARTS): Promise<void> {
    const { sandbox, watchdog, copies, current, execs, processes } = this.#context;
    sandbox.detach();
    this.#context.drain.cancel();
    this.#context.imageWait.cancel();
    current.close();
    watchdog.clear();
    this.#deletion.close();
    // The next agent need not repeat a copy or pause that is durable by then, nor clean up after a
    // machine that has just come to rest.
    const rested = Promise.allSettled([copies.copying, current.pausing, this.#mailbox.idle]);
    const saved = rested.then(() => this.#mailbox.send(() => sandbox.saveLastUse()));
    await settledWithin(saved, SANDBOX_LIMITS.sandboxDetachMs);
    await current.leave('the agent ends');
    processes.disconnect(new ProcessError('internal_error', why));
    await execs.detach();
  }

  /**
   * Copies machine or disk while actions wait. A machine that does not run on in time is killed.
   */
  async #copyTo(child: MachineOwner): Promise<StartState> {
    const { deps, copies, current } = this.#context;
    const { vmId, config } = this.row;
    let lift: (() => void) | undefined;
    const copying = deps.driver.fork(vmId, child, () => lift?.());
    const kill = (): void => current.killOverdue(NOT_CONTINUED);
    lift = copies.hold(copying, copyMsMax(config.memSizeMib), kill);
    await copying;
    const hasMemory = await deps.driver.hasCheckpoint(child.vmId);
    return hasMemory ? 'pending_resume' : 'pending_start';
  }

  #withChanges(
    mounts: readonly SandboxMount[] | undefined,
    copyHook: string | undefined,
  ): Pick<SandboxChange, 'config'> {
    if (mounts === undefined && copyHook === undefined) return {};
    const replaced = mounts === undefined ? {} : { mounts: [...mounts] };
    const hook = copyHook === undefined ? {} : { copyHook };
    return { config: { ...this.row.config, ...replaced, ...hook } };
  }

  /** Pauses a sandbox that has run, or been idle, for as long as it may. */
  #handleLimit(): void {
    const { sandbox, deps } = this.#context;
    const pause = async (): Promise<void> => {
      // The sandbox may have been used or given more time while this message waited.
      if (sandbox.isDetached || !sandbox.isLimitReached || this.row.state !== 'running') return;
      await beginDrainOrPause(this.#context, 'a time limit is reached', false);
    };
    this.#gate.send(pause).catch((error: unknown) => {
      deps.log.error({ sandboxId: this.id, err: toError(error) }, 'sandbox:limitFailed');
      sandbox.postponeLimits();
    });
  }
}
