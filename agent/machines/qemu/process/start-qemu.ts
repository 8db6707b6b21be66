import { shimPath } from '../../../native/native.ts';
import type { MachineGroups } from '../../shim/machine-cgroup.ts';
import { startShim } from '../../shim/start-shim.ts';

/** How the shim confines and runs a program; see shim.c. */
export interface ShimSpec {
  /** Directory for sockets, log and records of the machine; must exist. */
  readonly runDir: string;
  readonly guestDir: string;
  readonly disk: { readonly directory: string; readonly base: string } | undefined;
  readonly network: { readonly namespace: string; readonly tap: string } | undefined;
  readonly uid: number;
  /** Largest size of a file that the program writes. */
  readonly fileBytesMax: number;
  readonly withKvm: boolean;
  /** A library to preload into QEMU. */
  readonly preload: string | undefined;
  readonly groups: MachineGroups;
  /** Descriptors of this process that QEMU inherits, numbered from {@link QEMU_FD.passed}. */
  readonly passed: readonly number[];
  readonly program: string;
  readonly args: readonly string[];
}

function argumentsOf(spec: ShimSpec): string[] {
  const { runDir, guestDir, disk, network, groups } = spec;
  return [
    ...['--run', runDir, '--guest', guestDir, '--uid', String(spec.uid)],
    ...['--file-bytes', String(spec.fileBytesMax)],
    ...(disk === undefined ? [] : ['--disks', disk.directory, '--base', disk.base]),
    ...(network === undefined
      ? []
      : ['--network', `/run/netns/${network.namespace}`, '--tap', network.tap]),
    ...(spec.preload === undefined ? [] : ['--preload', spec.preload]),
    ...groups.shimFiles.flatMap((file) => ['--keeper-group', file]),
    ...groups.machineFiles.flatMap((file) => ['--machine-group', file]),
    ...['--oom-counter', groups.oomCounter],
    ...['--passed', String(spec.passed.length), '--kvm', spec.withKvm ? '1' : '0'],
    ...['--', spec.program, ...spec.args],
  ];
}

/**
 * Starts the shim and, in its confinement, QEMU; both outlive this process. Resolves once QEMU was
 * executed, which does not mean that QEMU accepts its arguments.
 * @throws Error naming the step at which the shim failed; nothing runs then
 */
export async function startQemu(spec: ShimSpec): Promise<void> {
  // Descriptors 4 to 9 stay unused, and the passed descriptors follow.
  const nothing = Array.from({ length: 6 }, () => undefined);
  await startShim(shimPath, argumentsOf(spec), [...nothing, ...spec.passed]);
}
