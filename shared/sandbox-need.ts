import { LIMITS } from './limits.ts';

/** What a sandbox takes of its host's capacity. */
export interface SandboxNeed {
  readonly memoryMib: number;
  readonly vcpus: number;
}

/** Its memory and what its virtual machine needs beside that. */
export const needOf = (config: {
  readonly memSizeMib: number;
  readonly vcpuCount: number;
}): SandboxNeed => ({
  memoryMib: config.memSizeMib + LIMITS.sandboxOverheadMib,
  vcpus: config.vcpuCount,
});
