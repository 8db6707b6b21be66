import { runInBackground } from '../../shared/background.ts';
import { AppError, toError } from '../../shared/errors.ts';
import type { SandboxUsage } from '../../shared/jobs/sandbox-kinds.ts';
import { LIMITS } from '../../shared/limits.ts';
import type { SandboxState } from '../../shared/sandbox-lifecycle.ts';
import type { SandboxImage } from '../../shared/schemas/sandbox-image.ts';
import type { SandboxConfig } from '../../shared/schemas/sandbox-record.ts';
import { paths } from '../system/paths.ts';
import type { SandboxRow } from '../journal/sandbox-journal.ts';
import {
  dependentForksOf,
  type DependentForks,
  type Family,
  familyOf,
  refuseIfDeep,
} from './fork-tree.ts';
import {
  type NewFork,
  type NewFromSnapshot,
  newRow,
  type NewSandbox,
  type Origin,
  type Owner,
} from './new-sandbox.ts';
import { shutDown } from './shut-down.ts';
import { SandboxExecs } from './execs/sandbox-execs.ts';
import { SandboxProcesses } from './processes/sandbox-processes.ts';
import { toBase } from './image-wait.ts';
import type { PrewarmedMachine } from './prewarmed-machines.ts';
import { failpoint } from '../system/failpoint.ts';
import { renewFiles } from '../system/renew-files.ts';
import { isMoving } from './action-gate.ts';
import { isAtRest, takenExec, takenRow, wasLostRunning } from './moving/taken-sandbox.ts';
import { SandboxActor } from './sandbox-actor.ts';
import type { SandboxActorDeps } from './sandbox-context.ts';
import type { StartState } from './sandbox-start.ts';
import type { Snapshot } from './snapshot.ts';
import type { NewSnapshot, SnapshotRef, Snapshots } from './snapshots.ts';

export interface SandboxRegistryDeps extends SandboxActorDeps {
  readonly dataDir: string;
  /** The default image, if it describes itself. */
  readonly image: SandboxImage | undefined;
  readonly snapshots: Snapshots;
}

export interface SandboxRef {
  readonly accountId: string;
  readonly sandboxId: string;
}

/** How many discarded ids are remembered, in case the job that creates one arrives late. */
const DISCARDED_MAX = 10_000;

/** The sandboxes of this host by id. Only the registry creates and forgets their actors. */
export class SandboxRegistry {
  readonly #deps: SandboxRegistryDeps;
  readonly #actors = new Map<string, SandboxActor>();
  readonly #discarded = new Set<string>();
  /** Sandboxes that were this host's since its agent started. */
  readonly #moved = new Set<string>();
  /** Sandboxes whose creation failed and of which something is left on the host. */
  readonly #uncreated = new Set<SandboxActor>();
  /** The creations under way. */
  readonly #creations = new Map<SandboxActor, Promise<unknown>>();

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

  /** What each sandbox with a running machine uses now. */
  async usages(): Promise<{ sandboxId: string; usage: SandboxUsage }[]> {
    const running = [...this.#actors.values()].filter(({ record }) => record.state === 'running');
    const usages = running.map(async (actor) => {
      // One whose files change just now is left out.
      const usage = await actor.usage().catch(() => undefined);
      return usage === undefined ? [] : [{ sandboxId: actor.id, usage }];
    });
    return (await Promise.all(usages)).flat();
  }

  /** The state of each sandbox. */
  get states(): SandboxState[] {
    return [...this.#actors.values()].map((actor) => actor.record.state);
  }

  /**
   * Recovers the journalled sandboxes and removes machines and disks that none of them owns.
   * Resolves when each sandbox is at rest, running or in a transition.
   */
  async recover(): Promise<void> {
    const { driver, carrier, snapshots } = this.#deps;
    const rows = await this.#placedRows();
    for (const row of rows) this.#add(row);
    await Promise.all(rows.map((row) => this.#holdImage(row)));
    const owned = new Set([...rows.map(({ vmId }) => vmId), ...snapshots.kept]);
    const unowned = (await driver.list()).filter((vmId) => !owned.has(vmId));
    await Promise.all(unowned.map((vmId) => this.#removeUnowned(vmId)));
    await this.#deps.mounts.recover(new Set(rows.map(({ id }) => id)));
    const actors = [...this.#actors.values()];
    await Promise.all([snapshots.recover(), ...actors.map((actor) => actor.recover())]);
    await Promise.all(actors.map((actor) => this.#finishTaking(actor)));
    if (carrier === undefined) return;
    for (const vmId of await carrier.storage.list()) {
      if (!owned.has(vmId)) await this.adopt(vmId);
    }
    for (const id of await carrier.released()) this.#moved.add(id);
  }

  /** What the journal has, but for sandboxes that another host has taken. */
  async #placedRows(): Promise<SandboxRow[]> {
    const { journal, carrier, slots, log } = this.#deps;
    const rows = await journal.list();
    if (carrier === undefined) return rows;
    const placed: SandboxRow[] = [];
    for (const row of rows) {
      if (row.uid < 0 || (await carrier.storage.has(row.vmId))) {
        placed.push(row);
        continue;
      }
      log.warn({ sandboxId: row.id, vmId: row.vmId }, 'sandbox:taken');
      this.#moved.add(row.id);
      await failpoint('journal taken away', () => journal.remove(row.id));
      const { slot } = row;
      if (slot !== undefined) runInBackground('slot.release', () => slots.release(slot));
    }
    return placed;
  }

  /** Removes what is of no sandbox, unless this host has taken it from another. */
  async #removeUnowned(vmId: string): Promise<void> {
    const { driver, carrier, log } = this.#deps;
    log.warn({ vmId }, 'reclaim:sandbox');
    await driver.reclaim(vmId);
    if ((await carrier?.isCarried(vmId)) === true) return;
    await failpoint('reclaim unowned disk', () => driver.remove(vmId));
  }

  /**
   * Goes on with a sandbox that another host had and whose machine's directory is here by now. May be
   * repeated after a crash.
   * @returns false when what lies there is none, or cannot be read
   */
  async adopt(vmId: string): Promise<boolean> {
    const { carrier, driver, journal, uids, log } = this.#deps;
    if (carrier === undefined) return false;
    const directory = carrier.storage.directoryOf(vmId);
    const uid = uids.take();
    let actor: SandboxActor;
    try {
      const carried = await carrier.read(directory, vmId);
      if (carried === undefined || this.#actors.has(carried.row.id))
        throw new Error('it is no sandbox that this host lacks');
      await driver.receive?.({ vmId, uid });
      if (!isAtRest(carried.row.state)) await renewFiles(carrier.outputOf({ vmId }));
      const hasCheckpoint = await driver.hasCheckpoint(vmId);
      const row = takenRow(carried.row, { uid, hasCheckpoint });
      await failpoint('journal taken', () => journal.insert(row));
      actor = this.#add(row);
      await this.#holdImage(row);
      log.info(
        { sandboxId: row.id, vmId, from: carried.hostId, state: row.state },
        'sandbox:moved',
      );
    } catch (error) {
      uids.release(uid);
      log.error({ vmId, err: toError(error) }, 'sandbox:adoptFailed');
      return false;
    }
    await this.#takeExecs(actor);
    this.#moved.delete(actor.id);
    await actor.recover();
    await this.#finishTaking(actor);
    return true;
  }

  async #takeExecs({ row }: SandboxActor): Promise<void> {
    const { carrier, journal, log } = this.#deps;
    if (carrier === undefined) return;
    try {
      const execs = await carrier.readExecs(carrier.storage.directoryOf(row.vmId), row);
      const taken = execs.map((exec) => takenExec(exec, row));
      await failpoint('journal taken execs', () => journal.addExecs(taken));
    } catch (error) {
      log.error({ sandboxId: row.id, err: toError(error) }, 'sandbox:takeExecsFailed');
    }
  }

  /**
   * Makes the copy beside the machine this host's own, which ends a taking, and starts what ran when
   * its former host was lost.
   */
  async #finishTaking(actor: SandboxActor): Promise<void> {
    const { carrier, hostId, log } = this.#deps;
    if (carrier === undefined || !actor.isPlaced) return;
    const { vmId } = actor.row;
    const carried = await carrier.read(carrier.storage.directoryOf(vmId), vmId).catch(toError);
    const isOwn = carried !== undefined && 'hostId' in carried && carried.hostId === hostId;
    if (!isOwn) {
      if (carried !== undefined && 'hostId' in carried) await this.#takeExecs(actor);
      await carrier.keep(actor.row);
    }
    if (!wasLostRunning(actor.row)) return;
    await actor.startAfterLoss().catch((error: unknown) => {
      log.warn({ sandboxId: actor.id, err: toError(error) }, 'sandbox:startAfterLossFailed');
    });
  }

  /** Gives every sandbox at rest up for other hosts. */
  async releaseResting(): Promise<void> {
    const { log } = this.#deps;
    for (const actor of [...this.#actors.values()].filter(({ isPlaced }) => isPlaced)) {
      try {
        if (await actor.release()) this.#forgetMoved(actor);
      } catch (error) {
        log.warn({ sandboxId: actor.id, err: toError(error) }, 'sandbox:releaseFailed');
      }
    }
  }

  /** Forgets the sandboxes that another host has taken: one that took this one for dead. */
  async forgetTaken(): Promise<void> {
    const { carrier, log } = this.#deps;
    if (carrier === undefined) return;
    const placed = [...this.#actors.values()].filter(({ isPlaced }) => isPlaced);
    const present = new Set(await carrier.storage.list());
    for (const actor of placed.filter(({ row }) => !present.has(row.vmId))) {
      if (!actor.isPlaced || (await carrier.storage.has(actor.row.vmId))) continue;
      log.warn({ sandboxId: actor.id, vmId: actor.row.vmId }, 'sandbox:taken');
      await actor.forgetTaken();
      this.#forgetMoved(actor);
    }
  }

  #forgetMoved(actor: SandboxActor): void {
    if (this.#moved.size >= DISCARDED_MAX) this.#moved.clear();
    this.#moved.add(actor.id);
    this.#deps.capacity.release(actor.id);
    this.#forget(actor.id);
  }

  /** @throws AppError `no_capacity`, `host_full`; `cancelled` when the creation was discarded */
  async create(sandbox: NewSandbox): Promise<SandboxActor> {
    const { sandboxId, accountId, config, environment, network, image } = sandbox;
    const { capacity, images, policies, prewarmed } = this.#deps;
    this.#refuseIfKnown(sandboxId);
    capacity.refuseIfFull(config);
    const digest = image?.digest;
    const held = digest === undefined ? undefined : await images.hold(sandboxId, digest);
    if (held !== undefined) this.#refuseIfGone(sandboxId);
    const described = image === undefined ? this.#description : {};
    const origin = {
      ...{ id: sandboxId, accountId, config: { ...config, ...described }, environment },
      ...policies.store(sandboxId, network),
      image: image && held ? toBase(image.reference, held) : image,
    };
    if (image !== undefined && held === undefined) {
      const actor = this.#addNew(origin, this.#ownerWithout(sandboxId));
      return this.#create(actor, { awaitsImage: true });
    }
    const taken = prewarmed.take(config, held);
    return this.#create(this.#addNew(origin, taken), { slot: taken?.slot });
  }

  /**
   * Copies a sandbox and starts the copy. When that fails, the source is unchanged.
   * @throws AppError `not_found`, the verdict’s code, `sandbox_start_conflict` for another
   *   checkpoint or too many generations, and those of {@link create}
   */
  async fork(ref: SandboxRef, { sandboxId, name, checkpoint }: NewFork): Promise<SandboxActor> {
    this.#refuseIfKnown(sandboxId);
    const source = this.find(ref);
    const { accountId, config, environment, image, uid } = source.row;
    refuseIfDeep(source.id, 1, this.#family());
    const digest = image?.digest;
    if (digest !== undefined) await this.#deps.images.hold(sandboxId, digest);
    this.#refuseIfGone(sandboxId);
    const awaitsImage = uid < 0;
    const child = this.#addNew(
      {
        ...{ id: sandboxId, accountId, environment, image, parentId: source.id },
        ...this.#deps.policies.copy(source.row, sandboxId),
        config: { ...config, name },
      },
      awaitsImage ? this.#ownerWithout(sandboxId) : undefined,
    );
    const owner = { vmId: child.row.vmId, uid: child.row.uid };
    return this.#create(child, { copy: () => source.fork(owner, checkpoint), awaitsImage });
  }

  /**
   * Begins to make a snapshot of a sandbox, which is unchanged.
   * @throws AppError `not_found`, the verdict’s code, `host_full`, `sandbox_start_conflict` for too
   *   many generations
   */
  async snapshot(ref: SandboxRef, wanted: NewSnapshot): Promise<Snapshot> {
    const source = this.find(ref);
    this.#deps.capacity.refuseIfStorageLow();
    refuseIfDeep(source.id, 2, this.#family()); // A sandbox created from it is another generation.
    return this.#deps.snapshots.make(source, wanted);
  }

  /**
   * Creates a sandbox from a snapshot and starts it.
   * @throws AppError `not_found`, `snapshot_not_ready`, and those of {@link create}
   */
  async createFromSnapshot(given: NewFromSnapshot): Promise<SandboxActor> {
    const { sandboxId, accountId, snapshotId, config, network } = given;
    this.#refuseIfKnown(sandboxId);
    const { capacity, images, policies, snapshots } = this.#deps;
    capacity.refuseIfFull(snapshots.findReady({ accountId, snapshotId }).row.config);
    const { image } = snapshots.findReady({ accountId, snapshotId }).row;
    if (image?.digest !== undefined) {
      await images.hold(sandboxId, image.digest);
      this.#refuseIfGone(sandboxId, () => snapshots.findReady({ accountId, snapshotId }));
    }
    const snapshot = snapshots.findReady({ accountId, snapshotId });
    const policy =
      network === undefined
        ? policies.copy(snapshot.row, sandboxId)
        : policies.store(sandboxId, network);
    const taken = this.#takePrewarmed(snapshot);
    const child = this.#addNew(
      {
        ...{ id: sandboxId, accountId, snapshotId, image },
        environment: given.environment ?? snapshot.row.environment,
        ...policy,
        config: { ...snapshot.row.config, ...config },
      },
      taken,
    );
    const { vmId, uid } = child.row;
    const state = snapshot.row.hasMemory ? 'pending_resume' : 'pending_start';
    const copy = (): Promise<StartState> =>
      taken === undefined ? snapshot.copyTo({ vmId, uid }) : Promise.resolve(state);
    return this.#create(child, { slot: taken?.slot, copy });
  }

  /**
   * Deletes a snapshot.
   * @returns the sandboxes that must be deleted first; undefined when the snapshot is deleted
   * @throws AppError `not_found`, `snapshot_not_ready`
   */
  async deleteSnapshot(ref: SnapshotRef): Promise<DependentForks | undefined> {
    const { prewarmed, snapshots } = this.#deps;
    const dependents = await snapshots.delete(ref, () => this.#dependentForks(ref.snapshotId));
    if (dependents === undefined) prewarmed.forgetSnapshot(ref.snapshotId);
    return dependents;
  }

  /** Removes a snapshot whose creator gave up, also if the job that makes it has yet to arrive. */
  async discardSnapshot(ref: SnapshotRef): Promise<void> {
    await this.#deps.snapshots.discard(ref, () => this.#dependentForks(ref.snapshotId));
  }

  #takePrewarmed({ row }: Snapshot): PrewarmedMachine | undefined {
    const { config, image, hasMemory, id, sizeBytes } = row;
    // Memory that a machine continues from is its own from the start.
    if (hasMemory && sizeBytes > LIMITS.snapshotPrewarmedBytesMax) return undefined;
    const digest = image?.digest;
    return this.#deps.prewarmed.take(config, digest === undefined ? undefined : { digest }, id);
  }

  has(sandboxId: string): boolean {
    return this.#actors.has(sandboxId);
  }

  /** @throws AppError `not_found`, `unavailable` for one that this host has given up */
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
    return this.find(ref).delete(() => this.#dependentForks(ref.sandboxId));
  }

  /** Removes a sandbox whose creator gave up, also if the job that creates it has yet to arrive. */
  async discard({ accountId, sandboxId }: SandboxRef): Promise<void> {
    if (this.#discarded.size >= DISCARDED_MAX) this.#discarded.clear();
    this.#discarded.add(sandboxId);
    const actor = this.#actors.get(sandboxId);
    if (actor === undefined || actor.accountId !== accountId) return;
    // A fork that is being created may still fail, and then does not count.
    for (let begun = this.#forksBegun(sandboxId); begun.length > 0;) {
      await Promise.all(begun);
      begun = this.#forksBegun(sandboxId);
    }
    await this.#deps.snapshots.madeOf(sandboxId);
    // The account has found and forked it, so it is in use after all.
    if (this.#dependentForks(sandboxId) !== undefined) return;
    await actor.discard();
  }

  /** Publishes every sandbox and snapshot again, after the directory has lost them. */
  async republish(): Promise<void> {
    await Promise.all([
      this.#deps.snapshots.republish(),
      ...[...this.#actors.values()].map((actor) => actor.republish()),
    ]);
  }

  /**
   * Ends every machine for the host's shutdown: pauses running sandboxes whose memory is safe then,
   * and stops the others.
   */
  async stopAll(): Promise<void> {
    const until = performance.now() + LIMITS.sandboxStopAllMs;
    await Promise.all(
      [...this.#actors.values()].map((actor) => shutDown(actor, until, this.#deps)),
    );
  }

  /** Begins to pause every sandbox that runs; what fails is logged, and may be tried again. */
  async pauseRunning(): Promise<void> {
    const running = [...this.#actors.values()].filter(({ row }) => row.state === 'running');
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
    const actors = [...this.#actors.values(), ...this.#uncreated];
    await Promise.all([this.#deps.snapshots.detach(), ...actors.map((actor) => actor.detach())]);
  }

  /** What the default image is, for the configuration of its sandboxes. */
  get #description(): Pick<SandboxConfig, 'image'> {
    const { image } = this.#deps;
    return image === undefined ? {} : { image };
  }

  /**
   * @throws AppError `outcome_unknown`, `cancelled` when no sandbox with this id may be created,
   *   `no_capacity` when none may
   */
  #refuseIfKnown(sandboxId: string): void {
    const isLeft = [...this.#uncreated].some((actor) => actor.id === sandboxId);
    if (isLeft || this.#actors.has(sandboxId))
      throw new AppError('outcome_unknown', 'the creation was begun before');
    if (this.#discarded.has(sandboxId))
      throw new AppError('cancelled', 'the creation was discarded');
    this.#deps.capacity.refuseIfCordoned();
  }

  /** As {@link #refuseIfKnown}, after a wait: gives up what is held for the sandbox, too. */
  #refuseIfGone(sandboxId: string, refuse?: () => unknown): void {
    try {
      this.#refuseIfKnown(sandboxId);
      refuse?.();
    } catch (error) {
      if (!this.#actors.has(sandboxId)) this.#deps.images.release(sandboxId);
      throw error;
    }
  }

  /** Of a sandbox that has no image yet and therefore needs no user. */
  #ownerWithout(sandboxId: string): Owner {
    return { vmId: sandboxId, uid: this.#deps.uids.takePlaceholder() };
  }

  /** Adds a sandbox that is about to be created, with the id and uid that it has already. */
  #addNew(origin: Origin, owner?: Owner): SandboxActor {
    const vmId = owner?.vmId ?? origin.id;
    return this.#add(newRow(origin, { vmId, uid: owner?.uid ?? this.#deps.uids.take() }));
  }

  async #create(
    actor: SandboxActor,
    creation: Parameters<SandboxActor['create']>[0],
  ): Promise<SandboxActor> {
    const creating = actor.create(creation);
    const isOver = creating.then(
      () => this.#creations.delete(actor),
      () => {
        this.#creations.delete(actor);
        this.#forgetUncreated(actor);
      },
    );
    this.#creations.set(actor, isOver);
    await creating;
    return actor;
  }

  /** Keeps the uid of a failed creation until nothing of it is left. */
  #forgetUncreated(actor: SandboxActor): void {
    this.#actors.delete(actor.id);
    this.#uncreated.add(actor);
    runInBackground('sandbox.forget', async () => {
      await actor.uncreated;
      this.#uncreated.delete(actor);
      this.#deps.images.release(actor.id);
      this.#deps.uids.release(actor.row.uid);
    });
  }

  /** Each promise settles when the fork is created, or has failed to be. */
  #forksBegun(sandboxId: string): Promise<unknown>[] {
    return [...this.#creations].flatMap(([{ row }, isOver]) =>
      row.parentId === sandboxId ? [isOver] : [],
    );
  }

  /** Forks whose deletion has begun do not count, even if it has yet to finish. */
  #dependentForks(sandboxId: string): DependentForks | undefined {
    return dependentForksOf(
      sandboxId,
      this.#family(({ isDeleting }) => !isDeleting),
    );
  }

  /** An image that cannot be held is missed by the next start of its sandbox, which says so. */
  async #holdImage({ id, image }: SandboxRow): Promise<void> {
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
  #family(counts: (row: SandboxRow) => boolean = () => true): Family {
    const rows = [...this.#actors.values()].map(({ row }) => row).filter(counts);
    return familyOf(rows, this.#deps.snapshots.kin);
  }

  #add(row: SandboxRow): SandboxActor {
    const { journal, dataDir, carrier, log } = this.#deps;
    const { id, config } = row;
    const directory = (): string =>
      carrier === undefined
        ? paths.sandboxOutput(dataDir, id)
        : carrier.outputOf(this.#actors.get(id)?.row ?? row);
    const execs = new SandboxExecs(id, config.maxConcurrentExecs, { directory, journal, log });
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
    this.#deps.carrier?.forget(id);
    this.#deps.images.release(id);
    this.#deps.uids.release(actor.row.uid);
  }
}
