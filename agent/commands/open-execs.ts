import { mkdir, rm } from 'node:fs/promises';
import { availableParallelism } from 'node:os';
import { COMMAND_LIMITS } from './limits.ts';
import type { Logger } from '../../shared/log.ts';
import { ContainerPool } from './container-pool.ts';
import type { ExecLimits } from '../machines/oci/exec-limits.ts';
import { readHiddenPaths } from '../machines/oci/hidden-paths.ts';
import { openUserRanges, type UserRangeSettings } from './open-user-ranges.ts';
import { OutputTurns } from './output-turns.ts';
import type { SeccompProfile } from '../machines/oci/seccomp.ts';
import type { DiskRegistry } from '../disks/disk-registry.ts';
import type { ImageBringer } from '../images/image-source.ts';
import type { Journal } from '../system/journal/journal.ts';
import { FairTurns } from '../system/queues/fair-turns.ts';
import type { HostGroups } from '../system/helper-group.ts';
import { paths } from '../system/paths.ts';
import { bringExecImage, checkExecImage } from './exec-image.ts';
import { ExecRegistry } from './exec-registry.ts';

/** Settings of commands on disks (docs/settings.md, Agent). */
export interface ExecSettings {
  /** Root file system of the containers. */
  readonly defaultImageDir: string;
  /** Image of the containers, as a normalised reference; undefined: the default. */
  readonly execImage: string | undefined;
  /** Links to the mount root that other clients expect (docs/settings.md, MOUNT_ALIASES). */
  readonly mountAliases: readonly string[];
  /** Commands that run at the same time. */
  readonly execSlots: number;
  /** How many of {@link execSlots} one account may hold while no other account uses any. */
  readonly execSlotsPerAccount: number;
  readonly execLimits: ExecLimits;
  /** Users of containers. */
  readonly userRanges: UserRangeSettings;
}

export interface ExecParts {
  readonly dataDir: string;
  readonly runDir: string;
  readonly groups: HostGroups;
  readonly disks: DiskRegistry;
  readonly journal: Journal;
  readonly builder: ImageBringer;
  readonly seccomp: SeccompProfile;
  readonly log: Logger;
}

/** The commands of a host, and the containers that are kept ready for them. */
export interface HostExecs {
  readonly execs: ExecRegistry;
  readonly pool: ContainerPool;
}

/** @throws Error when EXEC_IMAGE cannot be brought here, or runs no commands */
export async function openExecs(settings: ExecSettings, parts: ExecParts): Promise<HostExecs> {
  const { memoryBytes, cpus, processes } = settings.execLimits;
  const { disks, journal, log } = parts;
  const pool = await openPool(settings, parts);
  // Beside the workers run init and the search program. Each worker may count twice: a thread that
  // waits, and the process that works in its turn.
  const searchWorkers = Math.min(cpus, availableParallelism(), Math.floor((processes - 2) / 2));
  const turns = new FairTurns({
    count: settings.execSlots,
    perAccountMax: settings.execSlotsPerAccount,
    waiting: {
      count: COMMAND_LIMITS.execsWaitingMax,
      perAccountMax: COMMAND_LIMITS.execsWaitingPerAccountMax,
    },
    waitMsMax: COMMAND_LIMITS.execWaitMsMax,
    refusal: 'the host has more commands waiting than it can soon run',
  });
  const common = { journal, pool, log, turns, memoryBytes, searchWorkers };
  return { execs: new ExecRegistry(disks, common), pool };
}

async function openPool(settings: ExecSettings, parts: ExecParts): Promise<ContainerPool> {
  const { execImage, defaultImageDir, mountAliases, execLimits, execSlots } = settings;
  const { dataDir, runDir, groups, builder, seccomp, log } = parts;
  const image =
    execImage === undefined
      ? { tree: defaultImageDir, config: { env: {} } }
      : (await bringExecImage(execImage, { builder, dataDir, log })).image;
  await rm(paths.outputTails(dataDir), { recursive: true, force: true });
  await mkdir(paths.outputTails(dataDir), { mode: 0o700 });
  const containers = {
    containersDir: paths.containers(runDir),
    runcRoot: paths.runcRoot(dataDir),
    imageDir: image.tree,
    environment: image.config.env,
    ...{ mountAliases, limits: execLimits, ...groups, seccomp },
    hiddenPaths: await readHiddenPaths(),
    tails: { directory: paths.outputTails(dataDir), turns: new OutputTurns() },
  };
  const userRanges = await openUserRanges(settings.userRanges, dataDir, containers, log);
  const host = { ...containers, userRanges };
  if (execImage !== undefined) await checkExecImage(execImage, host);
  const startingMax = 2 * availableParallelism();
  return new ContainerPool(host, { readyMax: execSlots, startingMax }, log);
}
