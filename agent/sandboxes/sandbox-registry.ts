import { runInBackground } from '../../shared/background.ts';
import { AppError, toError } from '../../shared/errors.ts';
import type { SandboxUsage } from '../../shared/jobs/sandbox-kinds.ts';
import { SANDBOX_LIMITS } from './limits.ts';
import { isServing, type SandboxState } from '../../shared/sandbox-lifecycle.ts';
import { paths } from '../system/paths.ts';
import type { SandboxExecState, SandboxRow } from '../system/journal/sandbox-journal.ts';
import { dependentForksOf, type DependentForks, type Family, familyOf } from './holds/fork-tree.ts';
import { shutDown } from './shut-down.ts';
import type { OutputDirectory } from './execs/exec-output.ts';
import { SandboxExecs } from './execs/sandbox-execs.ts';
import { onAnyThread } from './execs/shared-threads.ts';
import { SandboxProcesses } from './processes/sandbox-processes.ts';
import { isMoving } from './lifecycle/action-gate.ts';
import type { HostedSandboxes } from './lifecycle/hosted-sandboxes.ts';
import { SandboxActor } from './lifecycle/sandbox-actor.ts';
import type { SandboxActorDeps } from './lifecycle/sandbox-context.ts';
import type { HandoverStore } from './moving/handover-store.ts';
import type { SnapshotRef, Snapshots } from './snapshots/snapshots.ts';

export interface SandboxRegistryDeps extends SandboxActorDeps {
  /** Undefined: the sandboxes stay on this host. */
  readonly handover?: HandoverStore | undefined;
  readonly dataDir: string;
  readonly snapshots: Snapshots;
}

export interface SandboxRef {
  readonly accountId: string;
  readonly sandboxId: string;
}

/** How many sandboxes are remembered that were moved to other hosts. */
const MOVED_MAX = 10_000;

/** The sandboxes of this host by id. Only the registry creates and forgets their actors. */
export class SandboxRegistry implements HostedSandboxes {
  readonly #deps: SandboxRegistryDeps;
  readonly #actors = new Map<string, SandboxActor>();
  /** Sandboxes that were this host's since its agent started. */
  readonly #moved = new Set<string>();
  /** Sandboxes whose creation failed and of which something is left on the host. */
  readonly #uncreated = new Set<SandboxActor>();
  readonly #stateWatchers = new Set<(row: SandboxRow) => void>();

  constructor(deps: SandboxRegistryDeps) {
    const stateEntered = (row: SandboxRow): void => {
      for (const watcher of this.#stateWatchers) watcher(row);
    };
    this.#deps = { ...deps, stateEntered };
  }

  /** Tells of each state that a sandbox enters from now on. */
  watchStates(watcher: (row: SandboxRow) => void): void {
    this.#stateWatchers.add(watcher);
  }

  /** The current usage of each sandbox with a running machine. */
  async usages(): Promise<{ sandboxId: string; usage: SandboxUsage }[]> {
    const running = this.actors.filter(({ row }) => isServing(row.state));
    const usages = running.map(async (actor) => {
      // A sandbox whose files change just now is left out.
      const usage = await actor.usage().catch(() => undefined);
      return usage === undefined ? [] : [{ sandboxId: actor.id, usage }];
    });
    return (await Promise.all(usages)).flat();
  }

  /** The state of each sandbox. */
  get states(): ReadonlyMap<string, SandboxState> {
    return new Map([...this.#actors].map(([id, actor]) => [id, actor.record.state]));
  }

  get actors(): readonly SandboxActor[] {
    return [...this.#actors.values()];
  }

  /**
   * Deletes a snapshot.
   * @returns the sandboxes that must be deleted first; undefined when the snapshot is deleted
   * @throws AppError `not_found`, `snapshot_not_ready`
   */
  async deleteSnapshot(ref: SnapshotRef): Promise<DependentForks | undefined> {
    const { prewarmed, snapshots } = this.#deps;
    const dependents = await snapshots.delete(ref, () => this.dependentForks(ref.snapshotId));
    if (dependents === undefined) prewarmed.forgetSnapshot(ref.snapshotId);
    return dependents;
  }

  /** Removes a snapshot whose creator gave up, also if the job that makes it has yet to arrive. */
  async discardSnapshot(ref: SnapshotRef): Promise<void> {
    await this.#deps.snapshots.discard(ref, () => this.dependentForks(ref.snapshotId));
  }

  has(sandboxId: string): boolean {
    return this.#actors.has(sandboxId);
  }

  /** Whether a creation with this id has failed and has left something on the host. */
  hasLeftovers(sandboxId: string): boolean {
    return [...this.#uncreated].some((actor) => actor.id === sandboxId);
  }

  /** @throws AppError `not_found`, `unavailable` for one that this host has released */
  find({ accountId, sandboxId }: SandboxRef): SandboxActor {
    const actor = this.#actors.get(sandboxId);
    if (this.#moved.has(sandboxId)) throw isMoving();
    if (actor === undefined || actor.isDeleted || actor.accountId !== accountId) {
      throw new AppError('not_found', 'there is no such sandbox');
    }
    return actor;
  }

  /**
   * Deletes a sandbox at rest.
   * @returns the forks that must be deleted first; undefined when the sandbox is deleted
   * @throws AppError `not_found`, `sandbox_not_stopped`
   */
  async delete(ref: SandboxRef): Promise<DependentForks | undefined> {
    return this.find(ref).delete(() => this.dependentForks(ref.sandboxId));
  }

  /** Publishes every sandbox and snapshot again, after the directory has lost them. */
  async republish(): Promise<void> {
    await Promise.all([
      this.#deps.snapshots.republish(),
      ...this.actors.map((actor) => actor.republish()),
    ]);
  }

  /**
   * Ends every machine for the host's shutdown: pauses running sandboxes whose memory is safe then,
   * and stops the others.
   */
  async stopAll(): Promise<void> {
    const until = performance.now() + SANDBOX_LIMITS.sandboxStopAllMs;
    await Promise.all(this.actors.map((actor) => shutDown(actor, until, this.#deps)));
  }

  /** Begins to pause every sandbox that runs; what fails is logged, and may be tried again. */
  async pauseRunning(): Promise<void> {
    const running = this.actors.filter(({ row }) => row.state === 'running');
    await Promise.all(
      running.map(async (actor) => {
        await actor.pause().catch((error: unknown) => {
          const failed = { sandboxId: actor.id, err: toError(error) };
          this.#deps.log.warn(failed, 'sandbox:pauseForDrainFailed');
        });
      }),
    );
  }

  /** Detaches from every sandbox; machines keep running. */
  async detach(): Promise<void> {
    const actors = [...this.actors, ...this.#uncreated];
    await Promise.all([this.#deps.snapshots.detach(), ...actors.map((actor) => actor.detach())]);
  }

  /** Remembers that another host has a sandbox, or may have it soon: its jobs are to go there. */
  noteMoved(sandboxId: string): void {
    if (this.#moved.size >= MOVED_MAX) this.#moved.clear();
    this.#moved.add(sandboxId);
  }

  /** Like {@link noteMoved}, and lets go of what this host holds for it. */
  forgetMoved({ id }: SandboxActor): void {
    this.noteMoved(id);
    this.#deps.capacity.release(id);
    this.#forget(id);
  }

  /** The opposite of {@link noteMoved}. */
  noteReturned(sandboxId: string): void {
    this.#moved.delete(sandboxId);
  }

  /** Keeps the uid of a failed creation until nothing of it is left. */
  forgetUncreated(actor: SandboxActor): void {
    this.#actors.delete(actor.id);
    this.#uncreated.add(actor);
    runInBackground('sandbox.forget', async () => {
      await actor.uncreated;
      this.#uncreated.delete(actor);
      this.#deps.images.release(actor.id);
      this.#deps.uids.release(actor.row.uid);
    });
  }

  /** Forks whose deletion has begun do not count, even if it has yet to finish. */
  dependentForks(sandboxId: string): DependentForks | undefined {
    return dependentForksOf(
      sandboxId,
      this.family(({ isDeleting }) => !isDeleting),
    );
  }

  /** An image that cannot be held is missed by the next start of its sandbox, which says so. */
  async holdImage({ id, image }: SandboxRow): Promise<void> {
    if (image?.digest === undefined) return;
    const err = await this.#deps.images
      .hold(id, image.digest)
      .then(
        (held) => (held === undefined ? new Error('the host does not have it') : undefined),
        toError,
      );
    const found = { sandboxId: id, digest: image.digest, err };
    if (err !== undefined) this.#deps.log.error(found, 'sandbox:holdImageFailed');
  }

  /** The family tree of sandboxes and snapshots; all of them count unless it is said which do. */
  family(counts: (row: SandboxRow) => boolean = () => true): Family {
    const rows = this.actors.map(({ row }) => row).filter(counts);
    return familyOf(rows, this.#deps.snapshots.kin);
  }

  /** Adds a sandbox that is journalled, or about to be. */
  add(row: SandboxRow): SandboxActor {
    const { journal, dataDir, handover, log } = this.#deps;
    const { id, config } = row;
    const present = (): SandboxRow => this.#actors.get(id)?.row ?? row;
    const own = { directory: paths.sandboxOutput(dataDir, id), onThread: onAnyThread };
    const outputs = (): OutputDirectory => handover?.outputOf(present()) ?? own;
    const handOver = handover && ((exec: SandboxExecState) => handover.saveExec(present(), exec));
    const parts = { outputs, journal, handOver, log };
    const execs = new SandboxExecs(id, config.maxConcurrentExecs, parts);
    const attachedMax = config.maxConcurrentExecs;
    const processes = new SandboxProcesses({ sandboxId: id, attachedMax, log });
    const actor = new SandboxActor(this.#deps, row, { execs, processes });
    this.#actors.set(id, actor);
    runInBackground('sandbox.forget', async () => {
      await actor.removed;
      this.#forget(id);
    });
    return actor;
  }

  #forget(id: string): void {
    const actor = this.#actors.get(id);
    if (actor === undefined) return;
    this.#actors.delete(id);
    this.#deps.policies.forget(id);
    this.#deps.handover?.forget(id);
    this.#deps.images.release(id);
    this.#deps.uids.release(actor.row.uid);
  }
}
