import { randomUUID } from 'node:crypto';
import type { SandboxRow } from '../../agent/system/journal/sandbox-journal.ts';
import { newAccountId, newDiskId, newHostId, newSandboxId } from '../../shared/ids.ts';
import type { SandboxRecord } from '../../shared/schemas/sandbox-record.ts';

const NOW = '2026-01-02T03:04:05.678Z';

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

/** A sandbox that runs as its owner's journal has it, but for `changes`. */
export const newSandbox = (changes: Partial<SandboxRow> = {}): SandboxRow => ({
  id: newSandboxId(),
  accountId: newAccountId(),
  config: {
    name: 'calm-river-17',
    vcpuCount: 2,
    memSizeMib: 512,
    maxTtlSeconds: 86_400,
    idleTtlSeconds: 0,
    maxConcurrentExecs: 32,
    baseImage: 'default',
  },
  environment: { TOKEN: 'a-secret' },
  image: undefined,
  network: { egress: { default: 'deny' } },
  networkSealed: undefined,
  rootDiskId: newDiskId(),
  parentId: undefined,
  snapshotId: undefined,
  vmId: newSandboxId(),
  uid: 600_100_001,
  slot: 3,
  bootId: randomUUID(),
  state: 'running',
  checkpoint: undefined,
  runningSince: undefined,
  expiresAt: undefined,
  idleSince: undefined,
  revision: 4,
  createdAt: NOW,
  lastActiveAt: NOW,
  runningAt: NOW,
  finishedAt: undefined,
  exitReason: undefined,
  exitMessage: undefined,
  hook: undefined,
  isDeleting: false,
  ...changes,
});
