import { mkdir, realpath } from 'node:fs/promises';
import { join } from 'node:path';
import type { Directory } from '../shared/directory/directory.ts';
import { runInBackground } from '../shared/background.ts';
import { AppError, toError } from '../shared/errors.ts';
import { hostIdPattern, newHostId } from '../shared/ids.ts';
import { DISK_LIMITS } from './disks/limits.ts';
import { SYSTEM_LIMITS } from './system/limits.ts';
import { ReachableNetworks } from '../shared/reachable-networks.ts';
import type { SandboxImage } from '../shared/schemas/sandbox-image.ts';
import type { Logger } from '../shared/log.ts';
import { endProcess } from '../shared/process-faults.ts';
import { settledWithin } from '../shared/settled-within.ts';
import type { StorageWatch } from '../shared/storage-watch.ts';
import { Buckets } from './disks/buckets/buckets.ts';
import { AttachedDisks } from './disks/attached-disks.ts';
import { DiskRegistry } from './disks/disk-registry.ts';
import { DiskUses } from './disks/disk-use.ts';
import { watchDisks } from './commands/watch-storage.ts';
import { watchSandboxes } from './sandboxes/watch-storage.ts';
import type { ExecRegistry } from './commands/exec-registry.ts';
import { openExecs } from './commands/open-execs.ts';
import { openGuestNetwork } from './network/open-guest-network.ts';
import { type HostImages, type ImageParts, openImages } from './images/open-images.ts';
import { openHandleSecret } from './machines/nfs/handle-secret.ts';
import { HeldDisks } from './machines/nfs/held-disks.ts';
import { claimRuntime } from './machines/shim/claim-runtime.ts';
import { endTakenOver } from './sandboxes/moving/end-taken-over.ts';
import { RuncDriver } from './machines/runc/runc-driver.ts';
import type { MachineDriver } from './machines/driver.ts';
import { SandboxImages } from './sandboxes/holds/sandbox-images.ts';
import type { SandboxSettings } from './sandboxes/holds/settings.ts';
import type { SlotPool } from './network/slots/slot-pool.ts';
import { MicrovmDriver } from './machines/qemu/microvm-driver.ts';
import { clearUploads } from './edge/s3/store/clear-uploads.ts';
import { type AgentConfig } from './config.ts';
import type { Beat } from './system/beat.ts';
import { paths } from './system/paths.ts';
import { DiskFiles } from './disks/disk-files.ts';
import { poolThreads } from './disks/disk-threads.ts';
import { LoopDevices } from './disks/loop-devices.ts';
import { StorageCalls } from './disks/storage-calls.ts';
import { RegionStorage } from './system/region-storage.ts';
import { openRunDirectory, removeRunDirectory } from './system/run-directory.ts';
import { StorageFence } from './system/storage-fence.ts';
import {
  BUCKETS_GROUP,
  endFormerProcesses,
  type HostGroups,
  makeHelperGroup,
  startMountGuard,
} from './system/helper-group.ts';
import { holdLock, Journal } from './system/journal/journal.ts';
import { type AgentDirectories, reclaim } from './reclaim.ts';
import { CAPABILITIES } from './machines/oci/bundle.ts';
import { detectCgroups, removeCgroups, trackingGroup } from './system/cgroup.ts';
import { readHiddenPaths } from './machines/oci/hidden-paths.ts';
import { readSeccomp } from './machines/oci/seccomp.ts';
import { readImage } from './system/read-image.ts';
import { writeOnce } from './system/write-once.ts';
import { keepProgramsIn } from './system/leash.ts';
import {
  type HostSandboxes,
  openSandboxes,
  type SandboxParts,
} from './sandboxes/open-sandboxes.ts';
import type { ObserveStart } from './sandboxes/lifecycle/start-clock.ts';
import { claimStorage, SharedStorage } from './sandboxes/moving/shared-storage.ts';
import { DiskBases } from './machines/qemu/disk/disk-bases.ts';
import type { SharedMachines } from './machines/qemu/microvm-host.ts';
import { ownPaths } from './system/sandbox-paths.ts';

/** This host's identity, held by this process alone until `release`. */
export interface HostIdentity {
  readonly hostId: string;
  readonly release: () => Promise<void>;
}

/**
 * The id is made once and kept with the host's data.
 * @throws Error when another agent runs here, or the file holds no id
 */
export async function claimHost(dataDir: string): Promise<HostIdentity> {
  await mkdir(dataDir, { recursive: true, mode: 0o700 });
  const release = await holdLock(paths.lock(dataDir));
  try {
    return { hostId: await claimId(paths.hostId(dataDir)), release };
  } catch (error) {
    await release();
    throw error;
  }
}

/**
 * Control groups, lock files and records are named after the id, so nothing else may pass for one.
 */
async function claimId(path: string): Promise<string> {
  const hostId = (await writeOnce(path, `${newHostId()}\n`)).trim();
  if (new RegExp(hostIdPattern, 'u').test(hostId)) return hostId;
  throw new Error(
    `${path} does not hold the id of a host: restore it, or remove it if this host never ran`,
  );
}

/** The parts of this agent on its host, with everything that it must give back. */
export interface Host {
  readonly disks: DiskRegistry;
  readonly execs: ExecRegistry;
  readonly files: DiskFiles;
  /** Watches the storage of disks; that of sandboxes has a watch of its own. */
  readonly storage: StorageWatch;
  /** Undefined when this host runs none. */
  readonly sandboxes: HostSandboxes | undefined;
  /** The image that sandboxes begin with; undefined when the image does not say. */
  readonly image: SandboxImage | undefined;
  readonly images: HostImages;
  /** Refuses commands that have not begun; settles when those that run have ended. */
  drain(): Promise<void>;
  /**
   * Ends everything that runs except sandboxes, gives every disk up, and leaves nothing else
   * behind.
   */
  close(): Promise<void>;
}

/** Measures how long each part of a start takes, so that a slow one can be found. */
class StartParts {
  readonly ms: Record<string, number> = {};

  async time<T>(part: string, work: () => Promise<T>): Promise<T> {
    const begunAt = performance.now();
    const result = await work();
    this.ms[part] = Math.round(performance.now() - begunAt);
    return result;
  }
}

/**
 * Storage that does not answer does not keep the host from starting: it is not ready meanwhile. Nor
 * does a leftover that cannot be removed, which is tried again.
 * @throws Error when the storage is not there
 */
async function openFiles(
  { storageDir, diskSizeBytes }: AgentConfig,
  {
    dataDir,
    directory,
    hostId,
    log,
  }: {
    readonly dataDir: string;
    readonly directory: Directory;
    readonly hostId: string;
    readonly log: Logger;
  },
): Promise<{ readonly region: RegionStorage; readonly files: DiskFiles }> {
  const region = new RegionStorage({
    directory: storageDir,
    dataDir,
    isFirstHost: async () =>
      (await directory.hosts.list()).every((entry) => entry.hostId === hostId),
  });
  const files = new DiskFiles(region, diskSizeBytes, hostId);
  const checked = region.check();
  const prepared = checked.then(() => files.prepare());
  const report = (err: unknown): void => log.error({ err: toError(err) }, 'storage:prepareFailed');
  prepared.catch(report);
  if (await settledWithin(prepared, SYSTEM_LIMITS.startStepMsMax)) await checked;
  else log.error('storage:silent');
  return { region, files };
}

const openHostImages = (
  { images }: AgentConfig,
  parts: Omit<ImageParts, 'firstLoop'> & { readonly loops: LoopDevices },
): Promise<HostImages> => openImages(images, { ...parts, firstLoop: parts.loops.firstNumber });

function warnOfFewThreads(log: Logger): void {
  if (poolThreads >= DISK_LIMITS.poolThreadsMin) return;
  log.warn({ poolThreads, wanted: DISK_LIMITS.poolThreadsMin }, 'threads:tooFew');
}

/**
 * The storage that this host shares for its sandboxes; undefined where they stay in its data
 * directory.
 * @throws Error when the host has sandboxes elsewhere
 */
async function openSharedStorage(
  { shared }: SandboxSettings,
  { hostId, dataDir, journal }: Pick<SandboxParts, 'hostId' | 'dataDir' | 'journal'>,
): Promise<SharedStorage | undefined> {
  const storage = shared && (await SharedStorage.open(shared.directory, hostId));
  const rows = [await journal.sandboxes.list(), await journal.snapshots.list()].flat();
  await claimStorage(dataDir, storage?.id, rows.length > 0);
  return storage;
}

const sharedMachines = (storage: SharedStorage, hostId: string): SharedMachines => ({
  bases: new DiskBases(storage.paths.bases, hostId),
});

/** @throws Error when the host has sandboxes of another runtime, or cannot run any of this one */
async function openDriver(
  { seccompProfile, cluster: { encryptionKeys } }: AgentConfig,
  { runtime, network, uidBase, bootTimeoutMs }: SandboxSettings,
  parts: HostGroups & {
    readonly hostId: string;
    readonly dataDir: string;
    readonly journal: Journal;
    readonly slots: SlotPool;
    readonly loops: LoopDevices;
    readonly storage: SharedStorage | undefined;
    readonly mayTrim: () => boolean;
    readonly log: Logger;
  },
): Promise<MachineDriver> {
  await claimRuntime(parts.dataDir, runtime.kind);
  const common = { uidBase, bootTimeoutMs };
  const hasNetwork = network !== undefined;
  if (runtime.kind === 'microvm') {
    const { hostId, dataDir, storage } = parts;
    const sandboxPaths = storage?.paths ?? ownPaths(dataDir);
    const handleSecret = await openHandleSecret(encryptionKeys, {
      path: sandboxPaths.handleSecret,
      owner: storage?.id ?? hostId,
      hasSandboxes: storage === undefined && (await parts.journal.sandboxes.list()).length > 0,
    });
    const shared = storage && sharedMachines(storage, hostId);
    return MicrovmDriver.open(
      { ...runtime, ...common },
      { ...parts, sandboxPaths, shared, handleSecret, hasNetwork },
    );
  }
  const seccomp = await readSeccomp(seccompProfile, CAPABILITIES);
  const hiddenPaths = await readHiddenPaths();
  return RuncDriver.open({ ...runtime, ...common }, { ...parts, hasNetwork, seccomp, hiddenPaths });
}

/** Reads the image that sandboxes start from and, where sandboxes are set up, opens this host's. */
async function openRuntime(
  config: AgentConfig,
  parts: Omit<
    SandboxParts,
    | 'storage'
    | 'image'
    | 'images'
    | 'openDriver'
    | 'namespaces'
    | 'policies'
    | 'encryptionKeys'
    | 'shared'
  > &
    HostGroups & {
      readonly loops: LoopDevices;
      readonly images: HostImages;
      readonly clusterAddresses: ImageParts['clusterAddresses'];
    },
): Promise<Pick<Host, 'image' | 'sandboxes'> & { close: () => Promise<void> }> {
  const { sandboxes: settings, defaultImageDir } = config;
  const runtime = settings?.runtime;
  const imagePath = runtime?.kind === 'microvm' ? runtime.rootDisk : defaultImageDir;
  const image = await readImage(imagePath, parts.log);
  if (settings === undefined) {
    return { image, sandboxes: undefined, close: async () => undefined };
  }
  const rows = await parts.journal.sandboxes.list();
  const network = await openGuestNetwork({
    ...{ ...parts, ...settings, guestLink: settings.runtime.kind === 'microvm' ? 'tap' : 'veth' },
    leased: rows.flatMap(({ slot }) => (slot === undefined ? [] : [slot])),
  });
  if (settings.shared !== undefined)
    await endTakenOver({ ...parts, sandboxes: parts.directory.sandboxes });
  const shared = await openSharedStorage(settings, parts);
  const { storageReserveBytes: reserveBytes } = config;
  const storage = watchSandboxes({ ...parts, reserveBytes }, shared);
  const mayTrim = (): boolean => storage.problem === undefined && !storage.isLow;
  const openWith = (slots: SlotPool): Promise<MachineDriver> =>
    openDriver(config, settings, { ...parts, storage: shared, slots, mayTrim });
  const { namespaces, policies } = network;
  const { encryptionKeys } = config.cluster;
  const sandboxes = await openSandboxes(settings, {
    ...{ ...parts, shared, storage },
    images: new SandboxImages({ ...parts.images, tree: settings.runtime.kind === 'container' }),
    ...{ image, namespaces, policies, encryptionKeys, openDriver: openWith },
  });
  return {
    ...{ image, sandboxes },
    close: async () => {
      storage.close();
      await network.close();
    },
  };
}

function openDisks(
  {
    cluster: { encryptionKeys, bucketNetworks },
    bucketSettleMs,
    azureAuthority,
    storageFenceCommand,
  }: AgentConfig,
  { cgroups, cgroupParent }: HostGroups,
  parts: Omit<
    ConstructorParameters<typeof DiskRegistry>[0],
    'calls' | 'attachedDisks' | 'fence' | 'onMounted' | 'backing'
  > & { readonly dataDir: string },
): DiskRegistry {
  const networks = new ReachableNetworks(bucketNetworks);
  const groupPath = trackingGroup(cgroups, `${cgroupParent}/${BUCKETS_GROUP}`);
  const backing = new Buckets({
    ...parts,
    settings: { encryptionKeys, networks, azureAuthority },
    settleMs: bucketSettleMs,
    group: join(groupPath, 'cgroup.procs'),
  });
  const disks = new DiskRegistry({
    ...parts,
    backing,
    calls: new StorageCalls(),
    attachedDisks: new AttachedDisks({
      count: DISK_LIMITS.disksAttachedMax,
      perAccountMax: DISK_LIMITS.disksAttachedPerAccountMax,
    }),
    fence: new StorageFence(storageFenceCommand, parts.log),
    onMounted: clearUploads,
  });
  runInBackground('bucket.resume', () => backing.resume(disks));
  return disks;
}

/**
 * Begins to keep this agent's programs together, with a guard of its mounts.
 * @param undo ends both
 */
async function openHelpers(
  groups: HostGroups,
  directories: AgentDirectories,
  undo: AsyncDisposableStack,
): Promise<void> {
  const { runDir, dataDir } = directories;
  undo.defer(() => removeRunDirectory(runDir));
  const group = await makeHelperGroup(groups);
  undo.defer(() => removeCgroups(groups.cgroups, groups.cgroupParent));
  keepProgramsIn(group);
  undo.defer(await startMountGuard(group, [runDir, dataDir]));
}

interface StartOptions {
  readonly observeStart: ObserveStart;
  readonly beat: Beat;
  readonly log: Logger;
  readonly clusterAddresses: ImageParts['clusterAddresses'];
}

/** @returns the paths that the kernel shows for mounts */
const openDirectories = async (
  { dataDir }: AgentConfig,
  hostId: string,
): Promise<AgentDirectories> => ({
  dataDir: await realpath(dataDir),
  runDir: await openRunDirectory(hostId),
});

/** Opens the journal, and clears away what a former agent left. */
async function openJournal(
  directories: AgentDirectories,
  groups: HostGroups,
  { parts, log }: { readonly parts: StartParts; readonly log: Logger },
): Promise<Journal> {
  await parts.time('formerProcesses', () => endFormerProcesses(groups, log));
  const journal = await parts.time('journal', () =>
    Journal.open(paths.journal(directories.dataDir), (err) =>
      endProcess(log, { err }, 'journal:syncFailed'),
    ),
  );
  await parts.time('reclaim', () => reclaim(directories, groups, journal, log));
  return journal;
}

/** Reclaims what a former agent left, then opens the host's parts in order of dependence. */
export async function openHost(
  config: AgentConfig,
  directory: Directory,
  hostId: string,
  { observeStart, beat, log, clusterAddresses }: StartOptions,
): Promise<Host> {
  warnOfFewThreads(log);
  const directories = await openDirectories(config, hostId);
  const cgroupParent = `${config.cgroupParent}/${hostId}`;
  const groups: HostGroups = { cgroups: await detectCgroups(), cgroupParent };
  const parts = new StartParts();
  const journal = await openJournal(directories, groups, { parts, log });
  // Parts that may be misconfigured are opened before anything is made that would be left on the
  // host.
  const { region, files } = await parts.time('storage', () =>
    openFiles(config, { ...directories, directory, hostId, log }),
  );
  const seccomp = await readSeccomp(config.seccompProfile, CAPABILITIES);
  await using undo = new AsyncDisposableStack();
  await openHelpers(groups, directories, undo);
  const loops = new LoopDevices(hostId, log);
  loops.sweepSoon();
  const { storage, guard } = watchDisks({ ...config, ...directories, region, journal, log });
  const shared = { hostId, ...directories, directory, loops, beat, log };
  const known = { ...shared, clusterAddresses, observeStart };
  const images = await parts.time('images', () =>
    openHostImages(config, { ...groups, ...known, region, storage }),
  );
  const uses = new DiskUses(directory, log);
  const disks = openDisks(config, groups, { ...shared, files, uses, holds: journal.diskHolds });
  const { execs, pool } = await parts.time('execs', () =>
    openExecs(config, { ...shared, groups, disks, journal, builder: images.builder, seccomp }),
  );
  guard(execs);
  pool.fill();
  const mounts = new HeldDisks({ ...directories, journal: journal.diskHolds, disks, log });
  const own = { ...groups, ...known, journal, images, mounts };
  const runtime = await parts.time('sandboxes', () => openRuntime(config, own));
  const { image, sandboxes } = runtime;
  images.startEviction(); // From now on every image that a sandbox needs is held.
  log.info({ partsMs: parts.ms }, 'host:opened');
  const helpers = undo.move();
  return {
    disks,
    execs,
    files,
    storage,
    sandboxes,
    image,
    images,
    async drain() {
      execs.refuseNew(new AppError('unavailable', 'the host is shutting down; try again'));
      await disks.releaseUnused();
      await execs.idle;
    },
    async close() {
      storage.close();
      await sandboxes?.close();
      await runtime.close();
      const reason = new AppError('outcome_unknown', 'the host shut down and ended the command');
      execs.endAll(reason);
      await disks.closeAll(reason);
      await uses.close();
      await execs.cleared();
      await pool.close();
      await images.close();
      await loops.close();
      await helpers.disposeAsync();
      await journal.close();
    },
  };
}
