import type { Logger } from '../../../shared/log.ts';
import type { MachineKind } from '../shim/machine-end.ts';
import { directoryOf } from '../shim/sandbox-directory.ts';
import type { LockedDatabases } from '../nfs/locked-databases.ts';
import type { MachineSpec } from '../driver.ts';
import type { BaseHost } from './disk/disk-base.ts';
import type { DiskBases } from './disk/disk-bases.ts';
import type { Template } from './memory/template.ts';
import type { TemplateStore } from './memory/template-store.ts';
import { MicrovmMachine } from './microvm-machine.ts';
import { type VmHost, vmCgroup } from './process/launch.ts';
import { machinePaths } from './process/machine-directory.ts';
import type { HostAccelerator } from './process/accelerator.ts';
import type { MachineIdentity } from '../shim/shim-files.ts';

/** Storage that hosts share, between which machines move. */
export interface SharedMachines {
  readonly bases: DiskBases;
}

/** Parts that the machines of this host share. */
export interface MicrovmHost extends VmHost, BaseHost {
  readonly dataDir: string;
  readonly handleSecret: Buffer;
  readonly databases: LockedDatabases;
  readonly sandboxesDir: string;
  /** Undefined: its sandboxes stay on this host. */
  readonly shared: SharedMachines | undefined;
  /** Whether a guest reaches anything outside, the server of its disks included. */
  readonly hasNetwork: boolean;
  /** Whether the storage answers, and has free space. */
  readonly mayTrim: () => boolean;
  readonly accelerator: HostAccelerator;
  readonly bootTimeoutMs: number;
  readonly templates: TemplateStore;
  readonly log: Logger;
}

/** How a guest ended only QEMU knows, and says before it ends. */
export const VIRTUAL_MACHINE: MachineKind = { noun: 'virtual machine', exitTellsShutdown: false };

/** The paths in a machine's directory. @throws RangeError for a text that is no VM id */
export const pathsOf = (host: MicrovmHost, vmId: string): ReturnType<typeof machinePaths> =>
  machinePaths(directoryOf(host, vmId));

/**
 * Begins to control a machine whose processes run.
 * @param template finds the template that its memory started from
 */
export const watchMachine = (
  host: MicrovmHost,
  { vmId }: Pick<MachineSpec, 'vmId'>,
  identity: MachineIdentity,
  template: () => Promise<Template>,
): MicrovmMachine =>
  new MicrovmMachine({
    ...{ vmId, identity, template },
    runDir: pathsOf(host, vmId).run,
    cgroup: vmCgroup(host, vmId),
    kind: VIRTUAL_MACHINE,
    log: host.log,
  });
