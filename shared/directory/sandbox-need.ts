import { LIMITS } from '../limits.ts';
import type { SandboxResources } from './capacity.ts';

/** Memory of a sandbox's machine besides the guest's own, in MiB. */
export const overheadMib = (vcpuCount: number): number =>
  LIMITS.machineOverheadMib + LIMITS.processorOverheadMib * vcpuCount;

/** The capacity that a running sandbox takes from its host. */
export const needOf = (config: {
  readonly memSizeMib: number;
  readonly vcpuCount: number;
}): SandboxResources => ({
  memoryMib: config.memSizeMib + overheadMib(config.vcpuCount),
  vcpus: config.vcpuCount,
});
