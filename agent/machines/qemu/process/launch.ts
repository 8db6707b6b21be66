import { closeSync } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import type { Accelerator } from '../../../../shared/schemas/host.ts';
import { overheadMib } from '../../../../shared/directory/sandbox-need.ts';
import { holesPath, native } from '../../../native/native.ts';
import { failpoint } from '../../../system/failpoint.ts';
import type { CgroupHost } from '../../../system/cgroup.ts';
import { machinePaths } from './machine-directory.ts';
import { qemuArguments, qemuProgram, type QemuSpec, RAM_PATH } from './qemu-arguments.ts';
import { startQemu, type ShimSpec } from './start-qemu.ts';
import { MachineCgroup } from '../../shim/machine-cgroup.ts';
import { GiB, MiB } from '../../../../shared/units.ts';

/** The size of a root disk and of qcow2's metadata; no file that QEMU writes may become larger. */
export const FILE_BYTES_MAX = 40 * GiB;
/** The initial size of the memory file for the devices' state; it grows as needed. */
const DEVICES_BYTES = 64 * 1024;
/** Threads of QEMU besides one per processor; most of them read and write the disk. */
const THREADS = 96;
/** Processor time that QEMU itself may use besides its guest, in processors. */
const CPU_SHARE = 0.5;

/** Parts that the machines of this host share. */
export interface VmHost {
  readonly guestDir: string;
  /** The default image. */
  readonly rootDisk: string;
  readonly cgroups: CgroupHost;
  /** The parent of every machine's control groups. */
  readonly cgroupParent: string;
}

/** The memory of a machine, and the descriptors of this process that it gets copies of. */
export type LaunchMemory =
  /** Anonymous memory, of which no checkpoint can be taken. */
  | { readonly kind: 'own' }
  /** The machine's writes go to the memory file, which becomes a template. */
  | { readonly kind: 'shared'; readonly ram: number }
  /** The machine boots a kernel; it maps a blank template privately. */
  | { readonly kind: 'private'; readonly ram: number }
  /** The machine maps a template privately and receives its devices' state through the pipe. */
  | { readonly kind: 'restored'; readonly ram: number; readonly incoming: number };

export interface Launch {
  /** Also the name of the control groups. */
  readonly name: string;
  /** Must exist. */
  readonly directory: string;
  readonly accelerator: Accelerator;
  readonly vcpuCount: number;
  readonly memSizeMib: number;
  readonly memory: LaunchMemory;
  readonly uid: number;
  readonly diskLayers: readonly string[];
  /** The image below the layers. */
  readonly diskBase?: string;
  readonly network: (ShimSpec['network'] & { readonly mac: string }) | undefined;
}

export const vmCgroup = (host: VmHost, name: string): MachineCgroup =>
  new MachineCgroup(host.cgroups, `${host.cgroupParent}/${name}`);

export const hostArchitecture: QemuSpec['architecture'] =
  process.arch === 'arm64' ? 'arm64' : 'x64';

/** Starts shim and QEMU; resolves when QEMU was executed. @throws Error; nothing runs then */
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
      startQemu({
        runDir: run,
        guestDir: host.guestDir,
        disk: hasDisk ? { directory: disks, base: spec.diskBase ?? host.rootDisk } : undefined,
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

/** The descriptors in the order of {@link QEMU_FD}, from `passed` on. */
function descriptorsOf(memory: LaunchMemory, devices: number): number[] {
  if (memory.kind === 'own') return [];
  const { ram } = memory;
  return memory.kind === 'restored' ? [ram, devices, memory.incoming] : [ram, devices];
}
