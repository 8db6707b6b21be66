import { newAccountId, newDiskId, newHostId, newSandboxId } from '../../shared/ids.ts';
import type { SandboxRecord } from '../../shared/schemas/sandbox-record.ts';

type Changes = Partial<Omit<SandboxRecord, 'config'>> & {
  readonly config?: Partial<SandboxRecord['config']>;
};

/** A sandbox as its owner would publish it, but for `changes`. */
export function sandboxRecord({ config, ...changes }: Changes = {}): SandboxRecord {
  const id = newSandboxId();
  const now = new Date().toISOString();
  return {
    id,
    accountId: newAccountId(),
    hostId: newHostId(),
    config: {
      name: `sandbox-${id.slice(-12)}`,
      vcpuCount: 1,
      memSizeMib: 2048,
      maxTtlSeconds: 86_400,
      idleTtlSeconds: 0,
      maxConcurrentExecs: 32,
      baseImage: 'ubuntu:26.04',
      ...config,
    },
    state: 'stopped',
    rootDiskId: newDiskId(),
    platform: 'amd64',
    createdAt: now,
    lastActiveAt: now,
    revision: 1,
    ...changes,
  };
}
