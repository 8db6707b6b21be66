import { availableParallelism } from 'node:os';
import { SandboxRegistry } from './sandbox-registry.ts';
import { Publisher, SandboxPublisher } from './lifecycle/publisher.ts';
import { Snapshots } from './snapshots/snapshots.ts';
import { toError } from '../../shared/errors.ts';
import type { Directory } from '../../shared/directory/directory.ts';
import { SANDBOX_LIMITS } from './limits.ts';
import { SYSTEM_LIMITS } from '../system/limits.ts';
import type { Logger } from '../../shared/log.ts';
import type { SnapshotRecord } from '../../shared/schemas/snapshot-record.ts';
import type { SandboxImage } from '../../shared/schemas/sandbox-image.ts';
import type { AcceleratorChoice, HostOrder } from '../../shared/schemas/host.ts';
import type { SandboxState } from '../../shared/sandbox-lifecycle.ts';
import type { StorageWatch } from '../../shared/storage-watch.ts';
import type { SandboxSettings } from './holds/settings.ts';
import { FairTurns } from '../system/queues/fair-turns.ts';
import type { Journal } from '../system/journal/journal.ts';
import type { SandboxRow } from '../system/journal/sandbox-journal.ts';
import type { Beat } from '../system/beat.ts';
import type { SlotPolicies } from '../network/policy/slot-policies.ts';
import type { SlotNamespaces } from '../network/slots/slot-namespace.ts';
import { SlotPool } from '../network/slots/slot-pool.ts';
import type { MachineDriver } from '../machines/driver.ts';
import { HostCapacity } from './holds/host-capacity.ts';
import { PrewarmedMachines, type PrewarmedMachinesDeps } from './prewarming/prewarmed-machines.ts';
import type { SandboxImages } from './holds/sandbox-images.ts';
import type { SandboxMounts } from '../machines/attachments.ts';
import { BaseEviction } from './base-eviction.ts';
import { HostWatch } from './moving/host-watch.ts';
import { HandoverStore } from './moving/handover-store.ts';
import { type RecoveryDeps, recoverAtStart } from './recover-at-start.ts';
import { RemovedHosts } from './moving/removed-hosts.ts';
import { SandboxTakeover, type SandboxTakeoverDeps } from './moving/sandbox-takeover.ts';
import { SandboxEvacuation, type SandboxEvacuationDeps } from './moving/sandbox-evacuation.ts';
import { SandboxCreator } from './sandbox-creator.ts';
import { ReleasedSandboxes } from './moving/released-sandboxes.ts';
import { SandboxMover, type SandboxMoverDeps } from './moving/sandbox-mover.ts';
import type { SharedStorage } from './moving/shared-storage.ts';
import { SandboxPolicies } from './holds/sandbox-policies.ts';
import type { ObserveStart } from './lifecycle/start-clock.ts';
import { UidPool } from './holds/uid-pool.ts';
import { UsageMeter } from './holds/usage-meter.ts';
import type { Ring } from '../../shared/secrets.ts';

export interface SandboxParts {
  readonly hostId: string;
  readonly dataDir: string;
  /** Where hosts share their sandboxes; undefined: they stay on this one. */
  readonly shared?: SharedStorage | undefined;
  readonly journal: Journal;
  readonly storage: StorageWatch;
  readonly directory: Directory;
  readonly beat: Beat;
  readonly images: SandboxImages;
  /** The default image, if it describes itself. */
  readonly image: SandboxImage | undefined;
  readonly openDriver: (slots: SlotPool) => Promise<MachineDriver>;
  readonly observeStart: ObserveStart;
  /** How network slots are made on this host. */
  readonly namespaces: SlotNamespaces;
  /** How policies of sandboxes count; undefined where sandboxes have no network. */
  readonly policies: SlotPolicies | undefined;
  /** The disks that sandboxes mount. */
  readonly mounts: SandboxMounts;
  /** Seal the secrets of policies in the journal; 32 bytes each. */
  readonly encryptionKeys: Ring<Buffer>;
  readonly log: Logger;
}

/** The sandboxes of a host on which they are enabled. */
export interface HostSandboxes {
  readonly registry: SandboxRegistry;
  readonly creator: SandboxCreator;
  readonly load: HostCapacity['load'];
  /** The state of each sandbox, by id. */
  readonly states: ReadonlyMap<string, SandboxState>;
  /** Watches where the sandboxes lie. */
  readonly storage: StorageWatch;
  /** The storage that its sandboxes share with those of other hosts. */
  readonly storageId: string | undefined;
  /** How new virtual machines run; undefined where sandboxes are containers. */
  readonly accelerator: () => AcceleratorChoice | undefined;
  /** Whether a paused sandbox stays in memory, with the disks that it mounts. */
  readonly pausedKeepDisks: boolean;
  /**
   * Sandboxes that could not be taken over, or released, and are tried again; undefined where they
   * do not move.
   */
  readonly failing: (SandboxTakeover['failing'] & { readonly give: number }) | undefined;
  /**
   * Follows the operator's order from now on: unless it is `up`, no new sandbox is taken.
   * @param toldAt when the host last told the directory its figures, by `performance.now()`
   */
  follow(order: HostOrder, toldAt: number): void;
  /** Ends every machine: running sandboxes are paused. For the shutdown of the host. */
  stopAll(): Promise<void>;
  /** Detaches from every sandbox: machines keep running without an agent. */
  close(): Promise<void>;
}

const newCapacity = (
  { memoryMib, vcpus, memoryReserveMib }: SandboxSettings,
  { hostId, storage, directory, log }: SandboxParts,
  meter: UsageMeter,
): HostCapacity =>
  new HostCapacity({
    ...{ hostId, memoryReserveMib, storage, log, meter },
    total: { memoryMib, vcpus },
    directory: directory.sandboxCapacity,
  });

/**
 * Bounds how many machines start at once, since more would only slow each other down. Turns
 * alternate between accounts; none is reserved for the next account, because starts are short.
 */
const turnsToStart = (count: number): FairTurns =>
  new FairTurns({
    count,
    perAccountMax: count,
    refusal: 'too many sandboxes are waiting to start',
  });

/** Renews this host's capacity in the directory, and restores what the directory has lost. */
function announceRegularly(
  capacity: HostCapacity,
  registry: SandboxRegistry,
  { beat, log }: Pick<SandboxParts, 'beat' | 'log'>,
): () => void {
  const announce = async (): Promise<void> => {
    if (await capacity.announce()) await registry.republish();
  };
  const announceOrWarn = (): void => {
    announce().catch((error: unknown) =>
      log.warn({ err: toError(error) }, 'capacity:publishFailed'),
    );
  };
  announceOrWarn();
  return beat.every(SYSTEM_LIMITS.hostAnnounceMs, announceOrWarn);
}

/** The name of this host's platform in images. */
const PLATFORM = process.arch === 'arm64' ? 'arm64' : 'amd64';

/**
 * Opens the policies, and has the present key seal what a former one has sealed in the journal, so
 * that the former one can go.
 * @throws Error when the ring lacks a key that is still needed; nothing of the host is touched then
 */
async function openPolicies(parts: SandboxParts): Promise<SandboxPolicies> {
  const { journal } = parts;
  const policies = new SandboxPolicies(parts.encryptionKeys, parts.policies);
  for (const row of await journal.sandboxes.list()) {
    const networkSealed = policies.reseal(row);
    if (networkSealed !== undefined) await journal.sandboxes.save({ ...row, networkSealed });
  }
  for (const row of await journal.snapshots.list()) {
    const networkSealed = policies.reseal(row);
    if (networkSealed !== undefined) await journal.snapshots.save({ ...row, networkSealed });
  }
  return policies;
}

const openSlots = (
  { slotsMax, slotsReady: readyMax }: SandboxSettings,
  { hostId, namespaces, log }: SandboxParts,
  rows: readonly SandboxRow[],
): Promise<SlotPool> => {
  const leased = rows.flatMap(({ slot }) => (slot === undefined ? [] : [slot]));
  return SlotPool.open({ ...{ hostId, slotsMax, readyMax, leased, namespaces, log } });
};

const uidsOf = (rows: readonly { readonly uid: number }[]): number[] => rows.map(({ uid }) => uid);

interface MovingParts {
  readonly handover: HandoverStore;
  readonly watch: HostWatch;
  /** Undefined where disks stand on no images that hosts share. */
  readonly eviction: BaseEviction | undefined;
  readonly removedHosts: RemovedHosts;
}

/**
 * Opens the parts for moving, on a host whose sandboxes may move.
 * @throws Error while others take what it had
 */
async function openMoving(
  { shared: settings }: SandboxSettings,
  { hostId, shared, journal, directory, storage, encryptionKeys, log }: SandboxParts,
  { bases }: MachineDriver,
): Promise<MovingParts | undefined> {
  if (shared === undefined || settings === undefined) return undefined;
  const { hostLostMs, keepBasesMs: keepMs } = settings;
  const common = { hostId, storage: shared, log };
  const watch = await HostWatch.open({ ...common, hosts: directory.hosts, hostLostMs });
  const handover = new HandoverStore({ ...common, encryptionKeys, journal: journal.sandboxes });
  return {
    ...{ handover, watch },
    removedHosts: new RemovedHosts({ hostId, handover, watch, directory, log }),
    eviction: bases && new BaseEviction({ bases, shared, watch, storage, keepMs, log }),
  };
}

function openPrewarmed(
  max: number,
  {
    boots,
    resumes,
    snapshots,
    capacity,
    ...deps
  }: Pick<PrewarmedMachinesDeps, 'driver' | 'slots' | 'uids' | 'images' | 'log'> & {
    readonly boots: FairTurns;
    readonly resumes: FairTurns;
    readonly snapshots: Snapshots;
    readonly capacity: HostCapacity;
  },
): PrewarmedMachines {
  return new PrewarmedMachines({
    ...{ ...deps, max },
    copySnapshot: (id, to) => snapshots.copyAhead(id, to),
    isBusy: () => boots.used > 0 || resumes.used > 0,
    isLow: () => capacity.load.isLow,
  });
}

interface Moving {
  readonly mover: SandboxMover;
  readonly takeover: SandboxTakeover;
  close(): Promise<void>;
}
type MovingDeps = Omit<
  SandboxTakeoverDeps & SandboxEvacuationDeps & SandboxMoverDeps,
  'handover' | 'watch' | 'takeover' | 'evacuation' | 'released'
>;

/** @returns what moves the sandboxes from now on, where they may move */
async function recover(
  moving: MovingParts | undefined,
  deps: Omit<RecoveryDeps, 'takeover' | 'evacuation'> & MovingDeps,
): Promise<Moving | undefined> {
  await moving?.eviction?.keepOwn();
  const takeover = moving && new SandboxTakeover({ ...deps, ...moving });
  const released = moving && takeover && new ReleasedSandboxes({ ...deps, ...moving, takeover });
  const evacuation = moving && released && new SandboxEvacuation({ ...deps, ...moving, released });
  await recoverAtStart({ ...deps, ...moving, takeover, evacuation });
  if (!(moving && takeover && released && evacuation)) return undefined;
  const { eviction, removedHosts } = moving;
  eviction?.start();
  removedHosts.start();
  const mover = new SandboxMover({ ...deps, ...moving, takeover, evacuation, released });
  return {
    ...{ takeover, mover },
    async close() {
      await mover.close();
      await eviction?.close();
      await removedHosts.close();
    },
  };
}

/** Stops taking sandboxes first: one taken later would be started, and left running. */
async function stopAll(
  registry: Pick<SandboxRegistry, 'stopAll'>,
  mover: Pick<SandboxMover, 'stopTakeovers'> | undefined,
): Promise<void> {
  await mover?.stopTakeovers();
  await registry.stopAll();
}

/** Recovers the sandboxes in the journal and removes the remains of all others. */
export async function openSandboxes(
  settings: SandboxSettings,
  parts: SandboxParts,
): Promise<HostSandboxes> {
  const { hostId, dataDir, journal, directory, images, storage, log } = parts;
  const policies = await openPolicies(parts);
  const [rows, snapshotRows] = [await journal.sandboxes.list(), await journal.snapshots.list()];
  const slots = await openSlots(settings, parts, rows);
  const driver = await parts.openDriver(slots);
  const publisher = new SandboxPublisher(directory.sandboxes, log);
  const meter = new UsageMeter(directory.usage, parts.beat);
  const capacity = newCapacity(settings, parts, meter);
  const uids = new UidPool(settings.uidBase, uidsOf([...rows, ...snapshotRows]));
  const boots = turnsToStart(availableParallelism());
  const resumes = turnsToStart(SANDBOX_LIMITS.sandboxResumesAtOnceMax);
  const shared = { hostId, platform: PLATFORM, driver, policies, uids, log } as const;
  const snapshotRecords = new Publisher<SnapshotRecord>(directory.snapshots, log);
  const snapshots = new Snapshots(
    { ...shared, images, journal: journal.snapshots, publisher: snapshotRecords },
    snapshotRows,
  );
  const prewarmed = openPrewarmed(settings.prewarmedMax, {
    ...{ driver, slots, uids, images, log, boots, resumes, snapshots, capacity },
  });
  const moving = await openMoving(settings, parts, driver);
  const ending = new AbortController();
  const common = {
    ...{ ...shared, slots, capacity, images, prewarmed, snapshots },
    ...{ journal: journal.sandboxes, mounts: parts.mounts, signal: ending.signal },
  } as const;
  const registry = new SandboxRegistry({
    ...{ ...common, dataDir, handover: moving?.handover, boots, resumes, publisher },
    ...{ bootTimeoutMs: settings.bootTimeoutMs, observeStart: parts.observeStart, storage },
  });
  const creator = new SandboxCreator({ ...common, registry, image: parts.image });
  const taking = await recover(moving, { ...directory, ...common, registry });
  const stopAnnouncing = announceRegularly(capacity, registry, parts);
  return {
    registry,
    creator,
    get load() {
      return capacity.load;
    },
    get states() {
      return registry.states;
    },
    ...{ storage, storageId: parts.shared?.id, accelerator: () => driver.accelerator },
    pausedKeepDisks: driver.traits.pausedStaysInMemory,
    get failing() {
      return taking && { ...taking.takeover.failing, give: taking.mover.notTakenOver };
    },
    follow(order, toldAt) {
      capacity.follow(order);
      taking?.mover.follow(order, toldAt);
    },
    stopAll: () => stopAll(registry, taking?.mover),
    async close() {
      ending.abort();
      stopAnnouncing();
      await taking?.close();
      capacity.close();
      await meter.close();
      await prewarmed.close();
      await registry.detach();
      await driver.close();
      for (const each of [parts.mounts, publisher, snapshotRecords]) each.close();
      await slots.close();
    },
  };
}
