import Type from 'typebox';
import { accountIdPattern, diskIdPattern, hostIdPattern, sandboxIdPattern } from '../ids.ts';
import { SCHEMA_LIMITS } from './limits.ts';
import { sandboxStates } from '../sandbox-lifecycle.ts';
import { ShownNetworkPolicy } from './network-policy.ts';
import { SandboxMounts } from './sandbox-mount.ts';
import { SandboxImage } from './sandbox-image.ts';

/** Why a sandbox is not running any more. Never a guess: each is set where it was observed. */
export const sandboxExitReasons = [
  'stopped', // The caller asked for it: the guest shut down.
  'stop_forced', // The caller asked for it, but the guest did not shut down within its grace time.
  'guest_shutdown', // The guest ended by itself.
  'guest_panic', // Its kernel did.
  'out_of_memory', // The host's kernel killed the virtual machine for want of memory.
  'vmm_crashed', // The virtual machine's process ended otherwise.
  // By the agent itself, which says why: it could not pause, copy or take it over.
  'killed_by_host',
  'host_restarted',
  'host_lost', // Another host had it, and is gone; its disk is all that is left.
  'boot_failed',
  'boot_timeout',
  'resume_failed', // Its checkpoint was used up, or found damaged.
  'image_failed', // Its image could not be brought to its host.
  'no_capacity', // Its host had none left when its image had come.
] as const;
export type SandboxExitReason = (typeof sandboxExitReasons)[number];

export const hookStatuses = [
  'pending', // The copy has not come to run yet.
  'running',
  'completed', // With exit code 0.
  'failed',
  'timed_out',
  'interrupted', // The agent of its host ended, or its guest did not answer.
  'unsupported', // The memory is older than hooks.
] as const;

/** How the hook of a copy ended, or how far it has come. */
export const HookResult = Type.Object({
  status: Type.Enum([...hookStatuses]),
  exitCode: Type.Optional(Type.Integer()),
  /** In words. */
  message: Type.Optional(Type.String({ maxLength: SCHEMA_LIMITS.sandboxExitMessageLengthMax })),
});
export type HookResult = Type.Static<typeof HookResult>;

/** The configuration of a sandbox, but for its environment, which only its owner keeps. */
export const SandboxConfig = Type.Object({
  name: Type.String(),
  vcpuCount: Type.Integer({ minimum: 1 }),
  memSizeMib: Type.Integer({ minimum: 1 }),
  maxTtlSeconds: Type.Integer({ minimum: 1 }),
  idleTtlSeconds: Type.Integer({ minimum: 0 }),
  maxConcurrentExecs: Type.Integer({ minimum: 1 }),
  /** Services in it publish the ports on which they listen; absent: no. */
  enableServiceIngress: Type.Optional(Type.Boolean()),
  /** The disks that it sees; absent: none. */
  mounts: Type.Optional(SandboxMounts),
  /** Runs in its copies, before their other processes continue; absent or empty: nothing. */
  copyHook: Type.Optional(Type.String({ maxLength: SCHEMA_LIMITS.copyHookBytesMax })),
  /** The caller's name for the image; what it really is when the caller named none. */
  baseImage: Type.String(),
  /** Its host's image when it was created, with which its disk still begins. */
  image: Type.Optional(SandboxImage),
});
export type SandboxConfig = Type.Static<typeof SandboxConfig>;

/** A sandbox as its host publishes it; times are RFC 3339. */
export const SandboxRecord = Type.Object({
  id: Type.String({ pattern: sandboxIdPattern }),
  accountId: Type.String({ pattern: accountIdPattern }),
  hostId: Type.String({ pattern: hostIdPattern }),
  config: SandboxConfig,
  state: Type.Enum([...sandboxStates]),
  /** The snapshot that it was created from. */
  snapshotId: Type.Optional(Type.String({ pattern: sandboxIdPattern })),
  /** The sandbox that it was forked from. */
  forkedFrom: Type.Optional(Type.String({ pattern: sandboxIdPattern })),
  /** The id of its root disk; no disk that the API of disks knows. */
  rootDiskId: Type.String({ pattern: diskIdPattern }),
  /** Names what it could go on from: another one after each pause or stop. */
  checkpoint: Type.Optional(Type.String()),
  platform: Type.Enum(['amd64', 'arm64']),
  /** Digest of its image, once that is known; a host's default image has none. */
  imageDigest: Type.Optional(Type.String()),
  createdAt: Type.String(),
  lastActiveAt: Type.String(),
  network: Type.Optional(ShownNetworkPolicy),
  runningAt: Type.Optional(Type.String()),
  /** While it runs: when its time limits pause it, unless it is used until then. */
  expiresAt: Type.Optional(Type.String()),
  finishedAt: Type.Optional(Type.String()),
  exitReason: Type.Optional(Type.Enum([...sandboxExitReasons])),
  /** The reason in words, with what was observed. */
  exitMessage: Type.Optional(Type.String({ maxLength: SCHEMA_LIMITS.sandboxExitMessageLengthMax })),
  /** The hook of the memory that it runs from. */
  hook: Type.Optional(HookResult),
  /** Grows with every change; the newest one counts. */
  revision: Type.Integer({ minimum: 1 }),
});
export type SandboxRecord = Type.Static<typeof SandboxRecord>;

/** `failed` never ran, or was lost with the sandbox; a command's own failure is its exit code. */
export const sandboxExecStatuses = [
  'running',
  'completed',
  'failed',
  'cancelled',
  'timed_out',
] as const;
export type SandboxExecStatus = (typeof sandboxExecStatuses)[number];

/** A command in a sandbox, without its output. */
export interface SandboxExecRecord {
  readonly id: string;
  readonly sandboxId: string;
  readonly command: string;
  /** Lists show the beginning of long commands. */
  readonly isCommandCut?: boolean;
  readonly status: SandboxExecStatus;
  readonly startedAt: string;
  readonly finishedAt?: string;
  /** 128 and the signal's number when a signal ended it. */
  readonly exitCode?: number;
  /** In words. */
  readonly exitReason?: string;
  readonly executeTimeMs?: number;
  /** Bytes of both streams that were put out before what is kept. */
  readonly droppedBytes: number;
}
