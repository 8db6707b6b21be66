import type { SandboxResources } from './capacity.ts';

const VMM_MIB = 224; // QEMU's code and state, and its cache of translated code.
const VCPU_MIB = 8; // Each virtual processor's thread.

/** Memory of a sandbox's machine besides the guest's own, in MiB. */
export const overheadMib = (vcpuCount: number): number => VMM_MIB + VCPU_MIB * vcpuCount;

/** The capacity that a running sandbox takes from its host. */
export const needOf = (config: {
  readonly memSizeMib: number;
  readonly vcpuCount: number;
}): SandboxResources => ({
  memoryMib: config.memSizeMib + overheadMib(config.vcpuCount),
  vcpus: config.vcpuCount,
});
