import { randomUUID } from 'node:crypto';
import type { MachineSpec } from '../../agent/machines/driver.ts';
import { newSandboxId } from '../../shared/ids.ts';

/** The spec of a new, small machine. */
export const machineSpec = (
  own: Pick<MachineSpec, 'uid' | 'slot'> & Partial<MachineSpec>,
): MachineSpec => ({
  vmId: newSandboxId(),
  vcpuCount: 1,
  memSizeMib: 256,
  mounts: [],
  settings: {
    hostname: 'machine-under-test',
    machineId: randomUUID(),
    bootId: randomUUID(),
    directory: '/',
    user: '',
    environment: { GREETING: 'hello' },
  },
  ...own,
});
