import { runInBackground } from '../../../shared/background.ts';
import { AppError, toError } from '../../../shared/errors.ts';
import { newDiskId } from '../../../shared/ids.ts';
import type { SandboxBase } from '../../system/journal/sandbox-journal.ts';
import type { SnapshotRow } from '../../system/journal/snapshot-journal.ts';
import type { DependentForks, Kin } from '../holds/fork-tree.ts';
import type { MachineOwner } from '../../machines/driver.ts';
import type { SandboxActor } from '../lifecycle/sandbox-actor.ts';
import type { SandboxImages } from '../holds/sandbox-images.ts';
import type { SandboxPolicies } from '../holds/sandbox-policies.ts';
import { Snapshot, type SnapshotDeps } from './snapshot.ts';
import type { UidPool } from '../holds/uid-pool.ts';

export interface SnapshotRef {
  readonly accountId: string;
  readonly snapshotId: string;
}

/** A snapshot to be made. */
export interface NewSnapshot {
  readonly snapshotId: string;
  readonly name: string;
  /** In place of its source's; empty: none. */
  readonly copyHook?: string | undefined;
}

interface SnapshotsDeps extends SnapshotDeps {
  readonly policies: SandboxPolicies;
  readonly images: SandboxImages;
  /** Knows the uids of all journalled snapshots. */
  readonly uids: UidPool;
}

/** How many discarded ids are remembered, in case the job that creates one arrives late. */
const DISCARDED_MAX = 10_000;

/** The snapshots of this host by id. */
export class Snapshots {
  readonly #deps: SnapshotsDeps;
  readonly #snapshots = new Map<string, Snapshot>();
  readonly #discarded = new Set<string>();

  /** @param rows of the journal; call {@link recover} afterwards */
  constructor(deps: SnapshotsDeps, rows: readonly SnapshotRow[]) {
    this.#deps = deps;
    for (const row of rows) this.#add(row);
  }

  /** Ids of the snapshots whose files must stay; those of others are removed. */
  get kept(): string[] {
    return this.#ready.map(({ row }) => row.id);
  }

  /** The snapshots that hold layers of sandboxes, as a family tree needs them. */
  get kin(): Kin[] {
    return [...this.#snapshots.values()]
      .filter(({ holdsLayers }) => holdsLayers)
      .map(({ row: { id, sandboxId, rootDiskId } }) => ({ id, parentId: sandboxId, rootDiskId }));
  }

  /** Finishes what a former agent began. Call it after unowned files were removed. */
  async recover(): Promise<void> {
    await Promise.all(this.#ready.map(({ row }) => this.#holdImage(row.id, row.image)));
    await Promise.all([...this.#snapshots.values()].map((snapshot) => snapshot.recover()));
  }

  /** Publishes every snapshot again, after the directory has lost them. */
  async republish(): Promise<void> {
    await Promise.all([...this.#snapshots.values()].map((snapshot) => snapshot.publish()));
  }

  async detach(): Promise<void> {
    await Promise.all([...this.#snapshots.values()].map((snapshot) => snapshot.detach()));
  }

  /**
   * Begins to copy a sandbox; resolves when that is journalled and published.
   * @throws AppError the verdict’s code; `cancelled`, `outcome_unknown` when no snapshot with this
   *   id may be made
   */
  async make(source: SandboxActor, wanted: NewSnapshot): Promise<Snapshot> {
    const { snapshotId } = wanted;
    this.#refuseIfKnown(snapshotId);
    const uid = this.#deps.uids.take();
    const snapshot = this.#add(newRow(source, { ...wanted, uid }));
    const begin = async (): Promise<void> => {
      this.#refuseIfDiscarded(snapshotId); // Again: this call may have waited for another copy.
      const { environment, image } = source.row;
      const config = configOf(source, wanted);
      if (source.row.uid < 0) {
        const message = 'the sandbox has no disk yet: it was stopped before its image was there';
        throw new AppError('sandbox_start_conflict', message);
      }
      const policy = this.#deps.policies.copy(source.row, snapshotId);
      await this.#holdImage(snapshotId, image);
      const nameAddresses = await source.nameAddresses();
      await snapshot.insert({ config, environment, image, ...policy, nameAddresses });
    };
    try {
      await snapshot.make(() => source.snapshot({ vmId: snapshotId, uid }, begin));
    } catch (error) {
      this.#forget(snapshotId);
      throw error;
    }
    await snapshot.publishNew();
    return snapshot;
  }

  /** @throws AppError `not_found` */
  find({ accountId, snapshotId }: SnapshotRef): Snapshot {
    const snapshot = this.#snapshots.get(snapshotId);
    if (snapshot === undefined || snapshot.isDeleting || snapshot.row.accountId !== accountId) {
      throw new AppError('not_found', 'there is no such snapshot');
    }
    return snapshot;
  }

  /**
   * A snapshot that sandboxes can be created from.
   * @throws AppError `not_found`, `snapshot_not_ready`
   */
  findReady(ref: SnapshotRef): Snapshot {
    const snapshot = this.find(ref);
    if (snapshot.row.state === 'ready') return snapshot;
    throw new AppError('snapshot_not_ready', `the snapshot is ${snapshot.row.state}`);
  }

  /**
   * Deletes a snapshot.
   * @param dependents sandboxes that depend on it now
   * @returns what must be deleted first; undefined when the snapshot is deleted
   * @throws AppError `not_found`, `snapshot_not_ready` while it is being made
   */
  async delete(
    ref: SnapshotRef,
    dependents: () => DependentForks | undefined,
  ): Promise<DependentForks | undefined> {
    const snapshot = this.find(ref);
    if (snapshot.row.state === 'creating') {
      throw new AppError('snapshot_not_ready', 'the snapshot is being made; try again');
    }
    const found = dependents();
    if (found === undefined) await snapshot.remove();
    return found;
  }

  /** Removes a snapshot whose creator gave up, also if the job that makes it has yet to arrive. */
  async discard(ref: SnapshotRef, dependents: () => DependentForks | undefined): Promise<void> {
    if (this.#discarded.size >= DISCARDED_MAX) this.#discarded.clear();
    this.#discarded.add(ref.snapshotId);
    const snapshot = this.#snapshots.get(ref.snapshotId);
    if (snapshot === undefined || snapshot.row.accountId !== ref.accountId) return;
    await snapshot.made;
    if (!snapshot.isJournalled || snapshot.isDeleting) return;
    // The account has found and used it, so it is in use after all.
    if (dependents() !== undefined) return;
    await snapshot.remove();
  }

  /**
   * Copies a snapshot for a machine that no sandbox has yet.
   * @returns false when the snapshot is gone; parts of the copy may be left
   */
  async copyAhead(snapshotId: string, to: MachineOwner): Promise<boolean> {
    const snapshot = this.#ready.find(({ row }) => row.id === snapshotId);
    try {
      await snapshot?.copyTo(to);
    } catch (error) {
      if (snapshot?.isDeleting === false) throw error;
    }
    return snapshot?.isDeleting === false;
  }

  /** Resolves when no snapshot of this sandbox is being made. */
  async madeOf(sandboxId: string): Promise<void> {
    const ofSandbox = [...this.#snapshots.values()].filter(
      ({ row }) => row.sandboxId === sandboxId,
    );
    await Promise.all(ofSandbox.map((each) => each.made));
  }

  get #ready(): Snapshot[] {
    const all = [...this.#snapshots.values()];
    return all.filter(({ row, isDeleting }) => row.state === 'ready' && !isDeleting);
  }

  /** When the image cannot be held, the next start on it fails and says why. */
  async #holdImage(id: string, image: SandboxBase | undefined): Promise<void> {
    const { images, log } = this.#deps;
    if (image?.digest === undefined) return;
    const held = await images.hold(id, image.digest).catch(toError);
    if (held !== undefined && !(held instanceof Error)) return;
    log.error({ snapshotId: id, digest: image.digest, err: held }, 'snapshot:holdImageFailed');
  }

  /** @throws AppError `outcome_unknown`, `cancelled` */
  #refuseIfKnown(snapshotId: string): void {
    if (this.#snapshots.has(snapshotId))
      throw new AppError('outcome_unknown', 'the snapshot was begun before');
    this.#refuseIfDiscarded(snapshotId);
  }

  /** @throws AppError `cancelled` */
  #refuseIfDiscarded(snapshotId: string): void {
    if (this.#discarded.has(snapshotId))
      throw new AppError('cancelled', 'the snapshot was discarded');
  }

  #add(row: SnapshotRow): Snapshot {
    const snapshot = new Snapshot(this.#deps, row);
    this.#snapshots.set(row.id, snapshot);
    runInBackground('snapshot.forget', async () => {
      await snapshot.removed;
      this.#forget(row.id);
    });
    return snapshot;
  }

  #forget(id: string): void {
    const snapshot = this.#snapshots.get(id);
    if (snapshot === undefined) return;
    this.#snapshots.delete(id);
    this.#deps.images.release(id);
    this.#deps.uids.release(snapshot.row.uid);
  }
}

/** The configuration of its sandboxes. */
const configOf = (
  { row: { config } }: SandboxActor,
  { copyHook }: NewSnapshot,
): SnapshotRow['config'] => (copyHook === undefined ? config : { ...config, copyHook });

/** Its configuration and policy are read again when the copy begins. */
const newRow = (
  { row: source }: SandboxActor,
  { snapshotId, name, uid }: NewSnapshot & { readonly uid: number },
): SnapshotRow => ({
  ...{ id: snapshotId, name, uid },
  accountId: source.accountId,
  sandboxId: source.id,
  config: source.config,
  image: source.image,
  environment: {},
  network: source.network,
  networkSealed: undefined,
  rootDiskId: newDiskId(),
  state: 'creating',
  hasMemory: false,
  sizeBytes: 0,
  failureReason: undefined,
  revision: 1,
  createdAt: new Date().toISOString(),
});
