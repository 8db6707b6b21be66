import Type from 'typebox';
import { accountIdPattern, imageIdPattern, sandboxIdPattern } from '../ids.ts';
import { SCHEMA_LIMITS } from '../schemas/limits.ts';
import type { NetworkDecision } from '../schemas/network-decision.ts';
import { ParsedNetworkPolicy } from '../schemas/network-policy.ts';
import { SandboxMounts } from '../schemas/sandbox-mount.ts';
import type { SandboxProcess } from '../schemas/sandbox-process.ts';
import type { SandboxExecRecord, SandboxRecord } from '../schemas/sandbox-record.ts';
import type { SnapshotRecord } from '../schemas/snapshot-record.ts';
import { ANSWER_GRACE_MS, type JobKindRow } from './job-kind.ts';

const onSandbox = { queue: 'sandbox', isRepeatable: true, graceMs: ANSWER_GRACE_MS } as const;

const SandboxRef = Type.Object({
  accountId: Type.String({ pattern: accountIdPattern }),
  sandboxId: Type.String({ pattern: sandboxIdPattern }),
});
const SnapshotRef = Type.Object({
  accountId: Type.String({ pattern: accountIdPattern }),
  snapshotId: Type.String({ pattern: sandboxIdPattern }),
});
const SandboxExecRef = Type.Interface([SandboxRef], {
  execId: Type.String({ pattern: sandboxIdPattern }),
});
/** How long the answer may wait for the work to end, in milliseconds. */
const waitMs = Type.Integer({ minimum: 0, maximum: SCHEMA_LIMITS.sandboxWaitMsMax });
/** Runs in copies of the sandbox; empty: nothing does, absent: as its source has it. */
const copyHook = Type.Optional(Type.String({ maxLength: SCHEMA_LIMITS.copyHookBytesMax }));
const Environment = Type.Unsafe<Record<string, string>>({
  type: 'object',
  additionalProperties: { type: 'string' },
});

/** Work on sandboxes, and on the snapshots and images that sandboxes begin with. */
export const sandboxKinds = {
  /** Journals a sandbox and starts it; at most once. */
  'sandbox.create': {
    ...onSandbox,
    isRepeatable: false,
    payload: Type.Interface([SandboxRef], {
      name: Type.String({ minLength: 1, maxLength: SCHEMA_LIMITS.sandboxNameLengthMax }),
      vcpuCount: Type.Integer({ minimum: 1, maximum: SCHEMA_LIMITS.sandboxVcpusMax }),
      memSizeMib: Type.Integer({ minimum: 1, maximum: SCHEMA_LIMITS.sandboxMemMibMax }),
      maxTtlSeconds: Type.Integer({ minimum: 1 }),
      idleTtlSeconds: Type.Integer({ minimum: 0 }),
      maxConcurrentExecs: Type.Integer({ minimum: 1 }),
      enableServiceIngress: Type.Optional(Type.Boolean()),
      copyHook,
      mounts: Type.Optional(SandboxMounts),
      baseImage: Type.String({ maxLength: SCHEMA_LIMITS.imageReferenceLengthMax }),
      /** Absent: the host's default image. */
      image: Type.Optional(
        Type.Object({
          /** Normalised (`shared/image-reference.ts`). */
          reference: Type.String({ maxLength: SCHEMA_LIMITS.imageReferenceLengthMax + 64 }),
          /**
           * Digest of an image that the account may use, whoever else may; otherwise the registry
           * is asked.
           */
          digest: Type.Optional(Type.String({ pattern: '^sha256:[0-9a-f]{64}$' })),
        }),
      ),
      environment: Environment,
      network: Type.Optional(ParsedNetworkPolicy),
      waitMs,
    }),
  },
  /** An action of the lifecycle table (`shared/sandbox-lifecycle.ts`). Idempotent by it. */
  'sandbox.action': {
    ...onSandbox,
    payload: Type.Interface([SandboxRef], {
      action: Type.Enum(['start', 'stop', 'pause', 'resume']),
      /** With `start`: replace those that it had. */
      mounts: Type.Optional(SandboxMounts),
      /** With `start`, too. */
      copyHook,
      waitMs,
    }),
  },
  /** Deletes the sandbox, unless forks depend on it. */
  'sandbox.delete': { ...onSandbox, graceMs: SCHEMA_LIMITS.sandboxWaitMsMax, payload: SandboxRef },
  /** Journals a copy of the sandbox, `childId`, and starts it on the same host; at most once. */
  'sandbox.fork': {
    ...onSandbox,
    isRepeatable: false,
    payload: Type.Interface([SandboxRef], {
      childId: Type.String({ pattern: sandboxIdPattern }),
      name: Type.String({ minLength: 1, maxLength: SCHEMA_LIMITS.sandboxNameLengthMax }),
      /** The checkpoint that the source must still have, for a caller who read it before. */
      checkpoint: Type.Optional(
        Type.String({ maxLength: SCHEMA_LIMITS.sandboxCheckpointLengthMax }),
      ),
      /** Whether the caller may mount disks; absent: control of an earlier version has judged. */
      mayMount: Type.Optional(Type.Boolean()),
      copyHook,
      waitMs,
    }),
  },
  /** Creates a sandbox from a snapshot of this host; what is absent is as in the snapshot. Once. */
  'sandbox.fromSnapshot': {
    ...onSandbox,
    isRepeatable: false,
    payload: Type.Interface([SandboxRef], {
      snapshotId: Type.String({ pattern: sandboxIdPattern }),
      name: Type.String({ minLength: 1, maxLength: SCHEMA_LIMITS.sandboxNameLengthMax }),
      maxTtlSeconds: Type.Optional(Type.Integer({ minimum: 1 })),
      idleTtlSeconds: Type.Optional(Type.Integer({ minimum: 0 })),
      maxConcurrentExecs: Type.Optional(Type.Integer({ minimum: 1 })),
      enableServiceIngress: Type.Optional(Type.Boolean()),
      copyHook,
      environment: Type.Optional(Environment),
      network: Type.Optional(ParsedNetworkPolicy),
      waitMs,
    }),
  },
  /** Sets how long the sandbox may run from now on, or be idle. Idempotent. */
  'sandbox.setLimits': {
    ...onSandbox,
    payload: Type.Interface([SandboxRef], {
      timeoutSeconds: Type.Optional(Type.Integer({ minimum: 1 })),
      idleTtlSeconds: Type.Optional(Type.Integer({ minimum: 0 })),
    }),
  },
  /** Replaces the network policy of a running sandbox. Idempotent. */
  'sandbox.setNetwork': {
    ...onSandbox,
    payload: Type.Interface([SandboxRef], { policy: ParsedNetworkPolicy }),
  },
  /** Reads decisions about connections of the sandbox. */
  'sandbox.decisions': { ...onSandbox, payload: SandboxRef },
  /** Measures the sandbox's current usage. */
  'sandbox.usage': { ...onSandbox, payload: SandboxRef },
  /** The processes of its sessions, while it runs. */
  'sandbox.processes': { ...onSandbox, payload: SandboxRef },
  /** Removes a sandbox whose creator was told that there is none. Idempotent. */
  'sandbox.discard': { ...onSandbox, payload: SandboxRef },
  /** Its output is beside it when it has ended. */
  'sandbox.exec': {
    ...onSandbox,
    isRepeatable: false,
    payload: Type.Interface([SandboxExecRef], {
      command: Type.String({ minLength: 1, maxLength: SCHEMA_LIMITS.commandBytesMax }),
      environment: Environment,
      hasTerminal: Type.Boolean(),
      timeoutSeconds: Type.Optional(Type.Integer({ minimum: 1 })),
      waitMs,
    }),
  },
  /** The newest commands, oldest first. */
  'sandbox.execs': { ...onSandbox, payload: SandboxRef },
  /** Reads a command and its kept output: the body is stdout and stderr. */
  'sandbox.execOutput': { ...onSandbox, payload: SandboxExecRef },
  /** Ends a command. Idempotent. */
  'sandbox.cancelExec': { ...onSandbox, payload: SandboxExecRef },
  /** Journals a snapshot of the sandbox and begins to make it; at most once. */
  'snapshot.create': {
    ...onSandbox,
    isRepeatable: false,
    payload: Type.Interface([SandboxRef], {
      snapshotId: Type.String({ pattern: sandboxIdPattern }),
      name: Type.String({ minLength: 1, maxLength: SCHEMA_LIMITS.sandboxNameLengthMax }),
      copyHook,
      waitMs,
    }),
  },
  /** Deletes the snapshot, unless sandboxes depend on it. */
  'snapshot.delete': {
    ...onSandbox,
    graceMs: SCHEMA_LIMITS.sandboxWaitMsMax,
    payload: SnapshotRef,
  },
  /** Removes a snapshot whose creator was told that there is none. Idempotent. */
  'snapshot.discard': { ...onSandbox, payload: SnapshotRef },
  /**
   * Begins to build an image that was claimed in the directory, which has its details. Idempotent.
   */
  'image.build': {
    ...onSandbox,
    payload: Type.Object({
      accountId: Type.String({ pattern: accountIdPattern }),
      imageId: Type.String({ pattern: imageIdPattern }),
      token: Type.String({ minLength: 1, maxLength: 64 }),
      source: Type.String({ maxLength: SCHEMA_LIMITS.imageReferenceLengthMax + 64 }),
      credentials: Type.Optional(
        Type.Object({
          username: Type.String({ maxLength: SCHEMA_LIMITS.imageCredentialLengthMax }),
          password: Type.String({ maxLength: SCHEMA_LIMITS.imageCredentialLengthMax }),
        }),
      ),
    }),
  },
} as const satisfies Record<string, JobKindRow>;

/** Sandboxes that prevent a deletion. */
interface Dependents {
  readonly dependentForks?: {
    readonly count: number;
    /** Ids of root disks, at most `SCHEMA_LIMITS.dependentForksListedMax`, the deepest first. */
    readonly diskIds: readonly string[];
  };
}

/**
 * The usage of a sandbox; what its host cannot measure, or what only a running one has, is missing.
 */
export interface SandboxUsage {
  /** Since it was started or resumed last. */
  readonly cpuSeconds?: number;
  readonly memoryBytes?: number;
  readonly receivedBytes?: number;
  readonly sentBytes?: number;
  readonly storedBytes: number;
}

export interface SandboxResults {
  'sandbox.create': { readonly sandbox: SandboxRecord };
  'sandbox.action': { readonly sandbox: SandboxRecord };
  /** Forks in the way, if the sandbox was not deleted. */
  'sandbox.delete': Dependents;
  'sandbox.fromSnapshot': { readonly sandbox: SandboxRecord };
  'sandbox.fork': { readonly sandbox: SandboxRecord };
  'sandbox.setLimits': { readonly sandbox: SandboxRecord };
  'sandbox.setNetwork': { readonly sandbox: SandboxRecord };
  'sandbox.decisions': { readonly decisions: readonly NetworkDecision[] };
  'sandbox.usage': { readonly usage: SandboxUsage };
  'sandbox.processes': { readonly processes: readonly SandboxProcess[] };
  'sandbox.discard': Record<string, never>;
  /** Its output is beside it when it has ended. */
  'sandbox.exec': { readonly exec: SandboxExecRecord };
  'sandbox.execs': { readonly execs: readonly SandboxExecRecord[] };
  'sandbox.execOutput': { readonly exec: SandboxExecRecord };
  'sandbox.cancelExec': { readonly exec: SandboxExecRecord };
  'snapshot.create': { readonly snapshot: SnapshotRecord };
  'snapshot.delete': Dependents;
  'snapshot.discard': Record<string, never>;
  'image.build': Record<string, never>;
}
