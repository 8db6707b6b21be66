import Type from 'typebox';
import {
  accountIdPattern,
  diskIdPattern,
  nodeIdPattern,
  sandboxIdPattern,
  imageIdPattern,
} from '../ids.ts';
import { LIMITS } from '../limits.ts';
import type { GrepResult } from '../schemas/grep.ts';
import type { NetworkDecision } from '../schemas/network-decision.ts';
import { NetworkPolicy } from '../schemas/network-policy.ts';
import { SandboxMounts } from '../schemas/sandbox-mount.ts';
import type { SandboxExecRecord, SandboxRecord } from '../schemas/sandbox-record.ts';
import type { SnapshotRecord } from '../schemas/snapshot-record.ts';
import { compile, taggedUnion } from '../validate.ts';

const DiskRef = Type.Object({
  accountId: Type.String({ pattern: accountIdPattern }),
  diskId: Type.String({ pattern: diskIdPattern }),
});

/** A disk, or a directory of one, as a command sees it; `path` is below the mount root. */
const ExecMount = Type.Object({
  diskId: Type.String({ pattern: diskIdPattern }),
  path: Type.String({ maxLength: LIMITS.mountPathBytesMax }),
  subdirectory: Type.String({ maxLength: LIMITS.mountPathBytesMax }),
  readOnly: Type.Boolean(),
  /** Directories or files below the mount to hold exclusively; empty text: the mount itself. */
  checkouts: Type.Array(Type.String({ maxLength: LIMITS.mountPathBytesMax }), {
    maxItems: LIMITS.checkoutsPerMountMax,
  }),
  /** How long to wait for each checkout; 0: not at all. */
  checkoutWaitMs: Type.Integer({ minimum: 0 }),
});
export type ExecMount = Type.Static<typeof ExecMount>;

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
/** How long the answer may wait for what was begun to end. */
const waitMs = Type.Integer({ minimum: 0, maximum: LIMITS.sandboxWaitMsMax });
const Environment = Type.Unsafe<Record<string, string>>({
  type: 'object',
  additionalProperties: { type: 'string' },
});

/** What is the same for all jobs of a kind. */
interface JobKindRow {
  /** Which of the host's queues takes it (`shared/directory/keys.ts`). */
  readonly queue: 'exec' | 'sandbox' | 'host';
  /** Whoever lost the answer may simply ask again, whatever became of the job. */
  readonly isRepeatable: boolean;
  /** How long after its deadline the answer may come, in milliseconds. */
  readonly graceMs: number;
  readonly payload: Type.TObject | Type.TUnsafe<object>;
}

/** Past the deadline the agent still has to kill the command, clear up and answer. */
const ANSWER_GRACE_MS = 2 * LIMITS.killGraceMs;
/** A search may go on without a caller: nothing is lost when its answer is not awaited. */
const GREP_ANSWER_GRACE_MS = 1_000;

const inContainer = { queue: 'exec', isRepeatable: false, graceMs: ANSWER_GRACE_MS } as const;
const onDisk = { queue: 'host', isRepeatable: false, graceMs: ANSWER_GRACE_MS } as const;
const onSandbox = { queue: 'sandbox', isRepeatable: true, graceMs: ANSWER_GRACE_MS } as const;

const kinds = {
  /** Runs a command on its disks; at most once. */
  'exec.run': {
    ...inContainer,
    payload: Type.Object({
      accountId: Type.String({ pattern: accountIdPattern }),
      mounts: Type.Array(ExecMount, { minItems: 1, maxItems: LIMITS.disksPerExecMax }),
      command: Type.String({ minLength: 1, maxLength: LIMITS.commandBytesMax }),
    }),
  },
  /** Searches a directory of a disk; writes nothing, so it may be repeated. */
  'grep.run': {
    ...inContainer,
    isRepeatable: true,
    graceMs: GREP_ANSWER_GRACE_MS,
    payload: Type.Interface([DiskRef], {
      directory: Type.String({ maxLength: LIMITS.mountPathBytesMax }),
      pattern: Type.String({ minLength: 1, maxLength: LIMITS.grepPatternBytesMax }),
      recursive: Type.Boolean(),
      concurrency: Type.Integer({ minimum: 1, maximum: LIMITS.grepConcurrencyMax }),
      maxResults: Type.Integer({ minimum: 1, maximum: LIMITS.grepResultsMax }),
    }),
  },
  /** Makes the file system of a disk that the directory lists as `creating`. Idempotent. */
  'disk.create': { ...onDisk, payload: DiskRef },
  /** Ends what runs on the disk and deletes its data. Idempotent. */
  'disk.delete': { ...onDisk, payload: DiskRef },
  /** Writes the directory's present record of the disk into the manifest. Idempotent. */
  'disk.record': { ...onDisk, payload: DiskRef },
  /** Finds out whether the object storage behind the disk can be used, and records it. Idempotent. */
  'disk.checkMount': { ...onDisk, payload: DiskRef },
  /** Unmounts the disk if nothing uses it, so that another host can take it. Idempotent. */
  'disk.release': { ...onDisk, payload: DiskRef },
  /** Finds out whether a file can be downloaded. Idempotent. */
  'disk.stat': {
    ...onDisk,
    payload: Type.Interface([DiskRef], {
      key: Type.String({ minLength: 1, maxLength: LIMITS.shareKeyBytesMax }),
    }),
  },
  /** Lists who holds or awaits what on the disk. */
  'disk.delegations': { ...onDisk, payload: DiskRef },
  /** Ends the holder's exec. Idempotent. */
  'disk.revoke': {
    ...onDisk,
    payload: Type.Interface([DiskRef], {
      clientId: Type.String({ maxLength: 255 }),
      inodeId: Type.Integer({ minimum: 0 }),
    }),
  },
  /** Journals a sandbox and starts it; at most once. */
  'sandbox.create': {
    ...onSandbox,
    isRepeatable: false,
    payload: Type.Interface([SandboxRef], {
      name: Type.String({ minLength: 1, maxLength: LIMITS.sandboxNameLengthMax }),
      vcpuCount: Type.Integer({ minimum: 1, maximum: LIMITS.sandboxVcpusMax }),
      memSizeMib: Type.Integer({ minimum: 1, maximum: LIMITS.sandboxMemMibMax }),
      maxTtlSeconds: Type.Integer({ minimum: 1 }),
      idleTtlSeconds: Type.Integer({ minimum: 0 }),
      maxConcurrentExecs: Type.Integer({ minimum: 1 }),
      enableServiceIngress: Type.Optional(Type.Boolean()),
      mounts: Type.Optional(SandboxMounts),
      baseImage: Type.String({ maxLength: LIMITS.imageReferenceLengthMax }),
      /** Absent: the host's default image. */
      image: Type.Optional(
        Type.Object({
          /** Normalised (`shared/image-reference.ts`). */
          reference: Type.String({ maxLength: LIMITS.imageReferenceLengthMax + 64 }),
          /** Of an image that the account may use, whoever else may; otherwise the registry is asked. */
          digest: Type.Optional(Type.String({ pattern: '^sha256:[0-9a-f]{64}$' })),
        }),
      ),
      environment: Environment,
      network: Type.Optional(NetworkPolicy),
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
      waitMs,
    }),
  },
  /** It is gone, unless forks stand in its way. */
  'sandbox.delete': { ...onSandbox, graceMs: LIMITS.sandboxWaitMsMax, payload: SandboxRef },
  /** Journals a copy of the sandbox, `childId`, and starts it on the same host; at most once. */
  'sandbox.fork': {
    ...onSandbox,
    isRepeatable: false,
    payload: Type.Interface([SandboxRef], {
      childId: Type.String({ pattern: sandboxIdPattern }),
      name: Type.String({ minLength: 1, maxLength: LIMITS.sandboxNameLengthMax }),
      /** The one that the source must have, for a caller who looked before. */
      checkpoint: Type.Optional(Type.String({ maxLength: LIMITS.sandboxCheckpointLengthMax })),
      waitMs,
    }),
  },
  /** Creates a sandbox from a snapshot of this host; what is absent is as in the snapshot. Once. */
  'sandbox.fromSnapshot': {
    ...onSandbox,
    isRepeatable: false,
    payload: Type.Interface([SandboxRef], {
      snapshotId: Type.String({ pattern: sandboxIdPattern }),
      name: Type.String({ minLength: 1, maxLength: LIMITS.sandboxNameLengthMax }),
      maxTtlSeconds: Type.Optional(Type.Integer({ minimum: 1 })),
      idleTtlSeconds: Type.Optional(Type.Integer({ minimum: 0 })),
      maxConcurrentExecs: Type.Optional(Type.Integer({ minimum: 1 })),
      enableServiceIngress: Type.Optional(Type.Boolean()),
      environment: Type.Optional(Environment),
      network: Type.Optional(NetworkPolicy),
      waitMs,
    }),
  },
  /** Journals a snapshot of the sandbox and begins to make it; at most once. */
  'snapshot.create': {
    ...onSandbox,
    isRepeatable: false,
    payload: Type.Interface([SandboxRef], {
      snapshotId: Type.String({ pattern: sandboxIdPattern }),
      name: Type.String({ minLength: 1, maxLength: LIMITS.sandboxNameLengthMax }),
      waitMs,
    }),
  },
  /** It is gone, unless sandboxes stand on it. */
  'snapshot.delete': { ...onSandbox, graceMs: LIMITS.sandboxWaitMsMax, payload: SnapshotRef },
  /** Begins to build an image that was claimed in the directory, where the rest stands. Idempotent. */
  'image.build': {
    ...onSandbox,
    payload: Type.Object({
      accountId: Type.String({ pattern: accountIdPattern }),
      imageId: Type.String({ pattern: imageIdPattern }),
      token: Type.String({ minLength: 1, maxLength: 64 }),
      source: Type.String({ maxLength: LIMITS.imageReferenceLengthMax + 64 }),
      credentials: Type.Optional(
        Type.Object({
          username: Type.String({ maxLength: LIMITS.imageCredentialLengthMax }),
          password: Type.String({ maxLength: LIMITS.imageCredentialLengthMax }),
        }),
      ),
    }),
  },
  /** Takes a snapshot back whose creator was told that there is none. Idempotent. */
  'snapshot.discard': { ...onSandbox, payload: SnapshotRef },
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
    payload: Type.Interface([SandboxRef], { policy: NetworkPolicy }),
  },
  /** What was decided about connections of the sandbox. */
  'sandbox.decisions': { ...onSandbox, payload: SandboxRef },
  /** What the sandbox uses now. */
  'sandbox.usage': { ...onSandbox, payload: SandboxRef },
  /** Takes a sandbox back whose creator was told that there is none. Idempotent. */
  'sandbox.discard': { ...onSandbox, payload: SandboxRef },
  /** Its output is beside it when it has ended. */
  'sandbox.exec': {
    ...onSandbox,
    isRepeatable: false,
    payload: Type.Interface([SandboxExecRef], {
      command: Type.String({ minLength: 1, maxLength: LIMITS.commandBytesMax }),
      environment: Environment,
      hasTerminal: Type.Boolean(),
      timeoutSeconds: Type.Optional(Type.Integer({ minimum: 1 })),
      waitMs,
    }),
  },
  /** The newest commands, oldest first. */
  'sandbox.execs': { ...onSandbox, payload: SandboxRef },
  /** One command and what is kept of its output: the body is stdout and stderr. */
  'sandbox.execOutput': { ...onSandbox, payload: SandboxExecRef },
  /** Ends a command. Idempotent. */
  'sandbox.cancelExec': { ...onSandbox, payload: SandboxExecRef },
} as const satisfies Record<string, JobKindRow>;

export type JobKind = keyof typeof kinds;
type KindsOf<Queue extends JobKindRow['queue']> = {
  [K in JobKind]: (typeof kinds)[K]['queue'] extends Queue ? K : never;
}[JobKind];
/** Runs in a container when its turn has come. */
export type CommandJobKind = KindsOf<'exec'>;
/** Work on a disk beside its commands. */
export type DiskJobKind = KindsOf<'host'>;
export type ImageJobKind = 'image.build';
export type SandboxJobKind = Exclude<KindsOf<'sandbox'>, ImageJobKind>;

/** What is the same for all jobs of the kind. */
export const jobKind = (kind: JobKind): Omit<JobKindRow, 'payload'> => kinds[kind];

export type JobPayload<K extends JobKind> = Type.Static<(typeof kinds)[K]['payload']>;

/** What stands in the way of a deletion. */
interface Dependents {
  readonly dependentForks?: {
    readonly count: number;
    /** Ids of root disks, at most `LIMITS.dependentForksListedMax`, the deepest first. */
    readonly diskIds: readonly string[];
  };
}

/** What each kind of job answers with, over the agent link. */
export interface JobResults {
  'exec.run': ExecOutcome;
  'grep.run': GrepOutcome;
  'disk.create': Record<string, never>;
  'disk.delete': Record<string, never>;
  'disk.record': Record<string, never>;
  'disk.checkMount': Record<string, never>;
  'disk.release': Record<string, never>;
  'disk.stat': { readonly sizeBytes: number };
  'disk.delegations': { readonly delegations: readonly Delegation[] };
  'disk.revoke': { readonly revoked: boolean };
  'sandbox.create': { readonly sandbox: SandboxRecord };
  'sandbox.action': { readonly sandbox: SandboxRecord };
  /** It is gone, unless forks stand in its way. */
  'sandbox.delete': Dependents;
  'sandbox.fromSnapshot': { readonly sandbox: SandboxRecord };
  'image.build': Record<string, never>;
  'snapshot.create': { readonly snapshot: SnapshotRecord };
  'snapshot.delete': Dependents;
  'snapshot.discard': Record<string, never>;
  'sandbox.fork': { readonly sandbox: SandboxRecord };
  'sandbox.setLimits': { readonly sandbox: SandboxRecord };
  'sandbox.setNetwork': { readonly sandbox: SandboxRecord };
  'sandbox.decisions': { readonly decisions: readonly NetworkDecision[] };
  'sandbox.usage': { readonly usage: SandboxUsage };
  'sandbox.discard': Record<string, never>;
  /** Its output is beside it when it has ended. */
  'sandbox.exec': { readonly exec: SandboxExecRecord };
  'sandbox.execs': { readonly execs: readonly SandboxExecRecord[] };
  'sandbox.execOutput': { readonly exec: SandboxExecRecord };
  'sandbox.cancelExec': { readonly exec: SandboxExecRecord };
}

/** What a sandbox uses; what its host cannot measure, or what only a running one has, is missing. */
export interface SandboxUsage {
  /** Since it was started or resumed last. */
  readonly cpuSeconds?: number;
  readonly memoryBytes?: number;
  readonly receivedBytes?: number;
  readonly sentBytes?: number;
  readonly storedBytes: number;
}

/** A delegation: one exec's exclusive use of a file or directory (docs/api.md, delegations). */
export interface Delegation {
  readonly clientId: string;
  readonly inodeId: number;
  /** From the disk's root. */
  readonly path: string;
  readonly isPending: boolean;
  readonly isOrphaned: boolean;
}

/** How a command ended; its output travels beside as bytes. */
export interface ExecOutcome {
  readonly exitCode: number;
  /** From the command's start to its end. */
  readonly executeMs: number;
  /** From the command's end until its last trace was gone and the answer was sent. */
  readonly endMs: number;
}

/** How a search ended; its matches travel beside as one JSON array. */
export type GrepOutcome = Omit<GrepResult, 'matches' | 'durationMs'>;

interface Envelope<K extends JobKind> {
  readonly id: string;
  readonly kind: K;
  readonly payload: JobPayload<K>;
  /** The control node that waits for the answer. */
  readonly replyTo: string;
  readonly requestId: string;
  /** A job that is not begun by then is dropped; work that is not done by then is ended. */
  readonly deadlineAt: number;
  /** Of the span that waits for the answer, while traces are on. */
  readonly traceparent?: string;
  /** The primary that it was queued at (`primaryOf`); undefined where Redis does not fail over. */
  readonly primary?: string;
}

/** A job in a host's queue, one of these kinds. Times are milliseconds since the epoch. */
export type JobEnvelope<K extends JobKind = JobKind> = { [P in K]: Envelope<P> }[K];

const envelopeOf = (kind: string, { payload }: JobKindRow) =>
  Type.Object({
    id: Type.String({ pattern: '^[0-9a-f-]{36}$' }),
    kind: Type.Literal(kind),
    payload,
    replyTo: Type.String({ pattern: nodeIdPattern }),
    requestId: Type.String({ minLength: 1, maxLength: 64 }),
    deadlineAt: Type.Integer({ minimum: 0 }),
    traceparent: Type.Optional(Type.String({ maxLength: LIMITS.traceparentLengthMax })),
    primary: Type.Optional(Type.String({ pattern: '^[0-9a-f]{40}$' })),
  });

/** The schema of each kind's jobs. */
export const jobSchemas = Object.entries(kinds).map(([kind, row]) => envelopeOf(kind, row));
const checkJob = compile(Type.Unsafe<JobEnvelope>(taggedUnion('kind', jobSchemas)));

/** @throws AppError `bad_request` when a queue holds something that is not one of our jobs */
export const parseJob = (data: unknown): JobEnvelope => checkJob(data, 'job');

/** What every version says of a job, so that one that is not understood can be answered. */
const JobSender = Type.Object({
  kind: Type.String({ maxLength: 64 }),
  id: Type.String({ minLength: 1, maxLength: 64 }),
  replyTo: Type.String({ pattern: nodeIdPattern }),
  requestId: Type.String({ minLength: 1, maxLength: 64 }),
});
export type JobSender = Type.Static<typeof JobSender>;
const checkSender = compile(JobSender);

/** @throws AppError `bad_request` when it is no job of any version */
export const parseJobSender = (data: unknown): JobSender => checkSender(data, 'job');
