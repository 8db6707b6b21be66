import type { SandboxRow } from '../system/journal/sandbox-journal.ts';
import { isDeepStrictEqual } from 'node:util';
import { AppError } from '../../shared/errors.ts';
import { SANDBOX_LIMITS } from './limits.ts';
import type { SandboxImage } from '../../shared/schemas/sandbox-image.ts';
import type { SandboxConfig } from '../../shared/schemas/sandbox-record.ts';
import { refuseIfDeep } from './holds/fork-tree.ts';
import type { HostCapacity } from './holds/host-capacity.ts';
import { toBase } from './lifecycle/wait-for-image.ts';
import {
  type NewFork,
  type NewFromSnapshot,
  newRow,
  type NewSandbox,
  type Origin,
  type Owner,
} from './lifecycle/new-sandbox.ts';
import type { PrewarmedMachine, PrewarmedMachines } from './prewarming/prewarmed-machines.ts';
import type { SandboxActor } from './lifecycle/sandbox-actor.ts';
import type { Copied, Inherited } from './lifecycle/admit-sandbox.ts';
import type { SandboxImages } from './holds/sandbox-images.ts';
import type { SandboxPolicies } from './holds/sandbox-policies.ts';
import type { SandboxRef, SandboxRegistry } from './sandbox-registry.ts';
import type { Snapshot } from './snapshots/snapshot.ts';
import type { NewSnapshot, Snapshots } from './snapshots/snapshots.ts';
import type { UidPool } from './holds/uid-pool.ts';

export interface SandboxCreatorDeps {
  readonly registry: SandboxRegistry;
  readonly capacity: HostCapacity;
  readonly images: SandboxImages;
  readonly policies: SandboxPolicies;
  readonly prewarmed: PrewarmedMachines;
  readonly snapshots: Snapshots;
  readonly uids: UidPool;
  /** The default image, if it describes itself. */
  readonly image: SandboxImage | undefined;
}

/** How many discarded ids are remembered, in case the job that creates one arrives late. */
const DISCARDED_MAX = 10_000;

/** Makes sandboxes: anew, as forks of others, and from snapshots. Makes the snapshots, too. */
/** @throws AppError `insufficient_scope` */
function refuseMounts({ mounts = [] }: SandboxRow['config']): void {
  if (mounts.length === 0) return;
  const message = 'the sandbox mounts disks: this needs an API key with the scope disk';
  throw new AppError('insufficient_scope', message);
}

export class SandboxCreator {
  readonly #deps: SandboxCreatorDeps;
  readonly #discarded = new Set<string>();
  /** The creations under way. */
  readonly #creations = new Map<SandboxActor, Promise<unknown>>();

  constructor(deps: SandboxCreatorDeps) {
    this.#deps = deps;
  }

  /** @throws AppError `no_capacity`, `host_full`; `cancelled` when the creation was discarded */
  async create(sandbox: NewSandbox): Promise<SandboxActor> {
    const { sandboxId, accountId, config, environment, network, image } = sandbox;
    const { capacity, images, policies, prewarmed } = this.#deps;
    this.#refuseIfKnown(sandboxId);
    capacity.refuseIfFull(config);
    // Before the image is held: a policy that is refused must hold none.
    const policy = policies.store(sandboxId, network);
    const digest = image?.digest;
    const held = digest === undefined ? undefined : await images.hold(sandboxId, digest);
    if (held !== undefined) this.#refuseIfGone(sandboxId);
    const described = image === undefined ? this.#description : {};
    const origin = {
      ...{ id: sandboxId, accountId, config: { ...config, ...described }, environment },
      ...policy,
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
   *   checkpoint or too many generations, `insufficient_scope`, and those of {@link create}
   */
  async fork(ref: SandboxRef, fork: NewFork): Promise<SandboxActor> {
    const { sandboxId, name, checkpoint, copyHook } = fork;
    this.#refuseIfKnown(sandboxId);
    const source = this.#deps.registry.find(ref);
    const { accountId, image, uid } = source.row;
    refuseIfDeep(source.id, 1, this.#deps.registry.family());
    const digest = image?.digest;
    if (digest !== undefined) await this.#deps.images.hold(sandboxId, digest);
    this.#refuseIfGone(sandboxId, () => {
      // Control has judged a copy of the record, which may be older.
      if (fork.mayMount === false) refuseMounts(source.row.config);
    });
    const awaitsImage = uid < 0;
    const wanted = { sandboxId, name, copyHook };
    const origin = { id: sandboxId, accountId, image, parentId: source.id };
    const child = this.#addNew(
      { ...origin, ...this.#inheritedFrom(source, wanted) },
      awaitsImage ? this.#ownerWithout(sandboxId) : undefined,
    );
    const { vmId, uid: childUid, config } = child.row;
    // The source may be changed while the fork waits for another copy.
    const begin = (): Inherited => {
      this.#refuseIfDiscarded(sandboxId);
      const inherited = this.#inheritedFrom(source, wanted);
      if (isDeepStrictEqual(inherited.config.mounts, config.mounts)) return inherited;
      throw new AppError('unavailable', 'its mounts were replaced meanwhile; try again');
    };
    const copy = (): Promise<Copied> => source.fork({ vmId, uid: childUid }, checkpoint, begin);
    return this.#create(child, { copy, awaitsImage });
  }

  #inheritedFrom(
    { row }: SandboxActor,
    { sandboxId, name, copyHook }: Pick<NewFork, 'sandboxId' | 'name' | 'copyHook'>,
  ): Inherited {
    const { environment, config } = row;
    const policy = this.#deps.policies.copy(row, sandboxId);
    const hook = copyHook === undefined ? {} : { copyHook };
    return { environment, ...policy, config: { ...config, name, ...hook } };
  }

  /**
   * Begins to make a snapshot of a sandbox, which is unchanged.
   * @throws AppError `not_found`, the verdict’s code, `host_full`, `sandbox_start_conflict` for too
   *   many generations
   */
  async snapshot(ref: SandboxRef, wanted: NewSnapshot): Promise<Snapshot> {
    const source = this.#deps.registry.find(ref);
    this.#deps.capacity.refuseIfStorageLow();
    // A sandbox created from it is another generation.
    refuseIfDeep(source.id, 2, this.#deps.registry.family());
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
    const { row } = snapshots.findReady({ accountId, snapshotId });
    capacity.refuseIfFull(row.config);
    // Before the image is held: what it refuses must hold none.
    const policy =
      network === undefined ? policies.copy(row, sandboxId) : policies.store(sandboxId, network);
    const { image } = row;
    if (image?.digest !== undefined) {
      await images.hold(sandboxId, image.digest);
      this.#refuseIfGone(sandboxId, () => snapshots.findReady({ accountId, snapshotId }));
    }
    const snapshot = snapshots.findReady({ accountId, snapshotId });
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
    const copy = async (): Promise<Copied> => {
      this.#refuseIfDiscarded(sandboxId);
      return { state: taken === undefined ? await snapshot.copyTo({ vmId, uid }) : state };
    };
    return this.#create(child, { slot: taken?.slot, copy });
  }

  #takePrewarmed({ row }: Snapshot): PrewarmedMachine | undefined {
    const { config, image, hasMemory, id, sizeBytes } = row;
    // Memory that a machine continues from is its own from the start.
    if (hasMemory && sizeBytes > SANDBOX_LIMITS.snapshotPrewarmedBytesMax) return undefined;
    const digest = image?.digest;
    return this.#deps.prewarmed.take(config, digest === undefined ? undefined : { digest }, id);
  }

  /** Removes a sandbox whose creator gave up, also if the job that creates it has yet to arrive. */
  async discard({ accountId, sandboxId }: SandboxRef): Promise<void> {
    if (this.#discarded.size >= DISCARDED_MAX) this.#discarded.clear();
    this.#discarded.add(sandboxId);
    const actor = this.#deps.registry.actors.find(({ id }) => id === sandboxId);
    if (actor === undefined || actor.accountId !== accountId) return;
    // A creation under way is refused before its copy begins, and removed once that is made.
    await this.#creations.get(actor);
    if (!this.#deps.registry.has(sandboxId)) return;
    // A fork that is being created may still fail, and then does not count.
    for (let begun = this.#forksBegun(sandboxId); begun.length > 0;) {
      await Promise.all(begun);
      begun = this.#forksBegun(sandboxId);
    }
    await this.#deps.snapshots.madeOf(sandboxId);
    // The account has found and forked it, so it is in use after all.
    if (this.#deps.registry.dependentForks(sandboxId) !== undefined) return;
    await actor.discard();
  }

  /** Description of the default image, for the configuration of its sandboxes. */
  get #description(): Pick<SandboxConfig, 'image'> {
    const { image } = this.#deps;
    return image === undefined ? {} : { image };
  }

  /**
   * @throws AppError `outcome_unknown`, `cancelled` when no sandbox with this id may be created,
   *   `no_capacity` when none may
   */
  #refuseIfKnown(sandboxId: string): void {
    const { registry, capacity } = this.#deps;
    if (registry.hasLeftovers(sandboxId) || registry.has(sandboxId))
      throw new AppError('outcome_unknown', 'the creation was begun before');
    this.#refuseIfDiscarded(sandboxId);
    capacity.refuseIfCordoned();
  }

  /** @throws AppError `cancelled` */
  #refuseIfDiscarded(sandboxId: string): void {
    if (this.#discarded.has(sandboxId))
      throw new AppError('cancelled', 'the creation was discarded');
  }

  /** Like {@link #refuseIfKnown}, after a wait: gives up what is held for the sandbox, too. */
  #refuseIfGone(sandboxId: string, refuse?: () => unknown): void {
    try {
      this.#refuseIfKnown(sandboxId);
      refuse?.();
    } catch (error) {
      if (!this.#deps.registry.has(sandboxId)) this.#deps.images.release(sandboxId);
      throw error;
    }
  }

  /** Owner of a sandbox that has no image yet and therefore needs no user. */
  #ownerWithout(sandboxId: string): Owner {
    return { vmId: sandboxId, uid: this.#deps.uids.takePlaceholder() };
  }

  /** Adds a sandbox that is about to be created, with the id and uid that it has already. */
  #addNew(origin: Origin, owner?: Owner): SandboxActor {
    const vmId = owner?.vmId ?? origin.id;
    return this.#deps.registry.add(
      newRow(origin, { vmId, uid: owner?.uid ?? this.#deps.uids.take() }),
    );
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
        this.#deps.registry.forgetUncreated(actor);
      },
    );
    this.#creations.set(actor, isOver);
    await creating;
    return actor;
  }

  /** Each promise settles when the fork is created, or has failed to be. */
  #forksBegun(sandboxId: string): Promise<unknown>[] {
    return [...this.#creations].flatMap(([{ row }, isOver]) =>
      row.parentId === sandboxId ? [isOver] : [],
    );
  }
}
