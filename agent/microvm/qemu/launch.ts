import { closeSync } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { overheadMib } from '../../../shared/directory/sandbox-need.ts';
import { holesPath, native } from '../../native/native.ts';
import { failpoint } from '../../system/failpoint.ts';
import type { CgroupHost } from '../../system/cgroup.ts';
import { machinePaths } from './machine-directory.ts';
import {
  type Accelerator,
  qemuArguments,
  qemuProgram,
  type QemuSpec,
  RAM_PATH,
} from './qemu-arguments.ts';
import { startShim, type ShimSpec } from './shim.ts';
import { VmCgroup } from './vm-cgroup.ts';
import { GiB, MiB } from '../../../shared/units.ts';

/** The root disk's size and what qcow2 needs beside it; it bounds what QEMU could write at all. */
export const FILE_BYTES_MAX = 40 * GiB;
/** To begin with; the state grows it. */
const DEVICES_BYTES = 64 * 1024;
/** Threads of QEMU beside those of the processors; most of them read and write the disk. */
const THREADS = 96;
/** What QEMU itself may use beside its guest. */
const CPU_SHARE = 0.5;

/** What all machines of this host have in common. */
export interface VmHost {
  readonly guestDir: string;
  readonly rootDisk: string;
  readonly cgroups: CgroupHost;
  /** Each machine has its groups below this one. */
  readonly cgroupParent: string;
}

/** Descriptors of this process that a machine gets copies of. */
export type LaunchMemory =
  /** Memory of its own, of which no checkpoint can be taken. */
  | { readonly kind: 'own' }
  /** A template in the making: what the machine writes goes there. */
  | { readonly kind: 'shared'; readonly ram: number }
  /** What the machine writes is its own; a template that is blank when it boots a kernel. */
  | { readonly kind: 'private'; readonly ram: number }
  /** The same for a machine that goes on: its devices' state comes through the pipe. */
  | { readonly kind: 'restored'; readonly ram: number; readonly incoming: number };

export interface Launch {
  /** Names the control groups, too. */
  readonly name: string;
  /** Must be there. */
  readonly directory: string;
  readonly accelerator: Accelerator;
  readonly vcpuCount: number;
  readonly memSizeMib: number;
  readonly memory: LaunchMemory;
  readonly uid: number;
  readonly diskLayers: readonly string[];
  readonly network: (ShimSpec['network'] & { readonly mac: string }) | undefined;
}

export const vmCgroup = (host: VmHost, name: string): VmCgroup =>
  new VmCgroup(host.cgroups, `${host.cgroupParent}/${name}`);

export const hostArchitecture: QemuSpec['architecture'] =
  process.arch === 'arm64' ? 'arm64' : 'x64';

/** Starts the machine's processes; resolves when QEMU was executed. @throws Error */
export async function launch(host: VmHost, spec: Launch): Promise<void> {
  const { run, disks } = machinePaths(spec.directory);
  const { accelerator, vcpuCount, memSizeMib, memory } = spec;
  const groups = await failpoint('make control groups', () =>
    vmCgroup(host, spec.name).create({
      memoryBytes: (memSizeMib + overheadMib(vcpuCount)) * MiB,
      processes: THREADS + vcpuCount,
      cpus: vcpuCount + CPU_SHARE,
    }),
  );
  await failpoint('make run directory', () => mkdir(run, { mode: 0o700 }));
  const args = qemuArguments({
    architecture: hostArchitecture,
    accelerator,
    name: spec.name,
    vcpuCount,
    memSizeMib,
    memory:
      memory.kind === 'own'
        ? { kind: 'anonymous' }
        : { kind: 'file', path: RAM_PATH, isShared: memory.kind === 'shared' },
    diskLayers: spec.diskLayers,
    network: spec.network,
    isRestored: memory.kind === 'restored',
  });
  const hasDisk = spec.diskLayers.length > 0;
  const devices = native.newMemory('berth-devices', DEVICES_BYTES);
  try {
    await failpoint('start machine', () =>
      startShim({
        runDir: run,
        guestDir: host.guestDir,
        disk: hasDisk ? { directory: disks, base: host.rootDisk } : undefined,
        network: spec.network,
        uid: spec.uid,
        fileBytesMax: FILE_BYTES_MAX,
        withKvm: accelerator === 'kvm',
        preload: memory.kind === 'own' ? undefined : holesPath,
        groups,
        passed: descriptorsOf(memory, devices),
        program: qemuProgram(hostArchitecture),
        args,
      }),
    );
  } finally {
    closeSync(devices);
  }
}

/** In the order of QEMU_FD. */
function descriptorsOf(memory: LaunchMemory, devices: number): number[] {
  if (memory.kind === 'own') return [];
  const { ram } = memory;
  return memory.kind === 'restored' ? [ram, devices, memory.incoming] : [ram, devices];
}
