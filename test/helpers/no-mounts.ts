import type { SandboxMounts } from '../../agent/machines/attachments.ts';

/** Stands for a host whose sandboxes mount no disks. */
export const noMounts: SandboxMounts = {
  hold: async () => async () => undefined,
  retain: async () => undefined,
  locate: () => [],
  recover: async () => undefined,
  close: () => undefined,
};
