import type { SandboxRoom } from './directory/capacity.ts';

const VMM_MIB = 224; // QEMU's code and state, and its cache of translated code.
const VCPU_MIB = 8; // What the thread of a processor needs.

/** What the virtual machine of a sandbox needs beside the guest's memory. */
export const overheadMib = (vcpuCount: number): number => VMM_MIB + VCPU_MIB * vcpuCount;

/** What a sandbox that runs takes of its host. */
export const needOf = (config: {
  readonly memSizeMib: number;
  readonly vcpuCount: number;
}): SandboxRoom => ({
  memoryMib: config.memSizeMib + overheadMib(config.vcpuCount),
  vcpus: config.vcpuCount,
});
