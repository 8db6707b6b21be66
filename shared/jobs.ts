import Type from 'typebox';
import { accountIdPattern, diskIdPattern, nodeIdPattern, sandboxIdPattern } from './ids.ts';
import { LIMITS } from './limits.ts';
import type { GrepResult } from './schemas/grep.ts';
import type { SandboxExecRecord, SandboxRecord } from './schemas/sandbox-record.ts';
import { compile } from './validate.ts';

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
const SandboxExecRef = Type.Interface([SandboxRef], {
  execId: Type.String({ pattern: sandboxIdPattern }),
});
/** How long the answer may wait for what was begun to end. */
const waitMs = Type.Integer({ minimum: 0, maximum: LIMITS.sandboxWaitMsMax });
const Environment = Type.Unsafe<Record<string, string>>({
  type: 'object',
  additionalProperties: { type: 'string' },
});

const payloads = {
  /** Runs a command on its disks; at most once. */
  'exec.run': Type.Object({
    accountId: Type.String({ pattern: accountIdPattern }),
    mounts: Type.Array(ExecMount, { minItems: 1, maxItems: LIMITS.disksPerExecMax }),
    command: Type.String({ minLength: 1, maxLength: LIMITS.commandBytesMax }),
  }),
  /** Searches a directory of a disk; writes nothing, so it may be repeated. */
  'grep.run': Type.Interface([DiskRef], {
    directory: Type.String({ maxLength: LIMITS.mountPathBytesMax }),
    pattern: Type.String({ minLength: 1, maxLength: LIMITS.grepPatternBytesMax }),
    recursive: Type.Boolean(),
    concurrency: Type.Integer({ minimum: 1, maximum: LIMITS.grepConcurrencyMax }),
    maxResults: Type.Integer({ minimum: 1, maximum: LIMITS.grepResultsMax }),
  }),
  /** Makes the file system of a disk that the directory lists as `creating`. Idempotent. */
  'disk.create': DiskRef,
  /** Ends what runs on the disk and deletes its data. Idempotent. */
  'disk.delete': DiskRef,
  /** Writes the directory's present record of the disk into the manifest. Idempotent. */
  'disk.record': DiskRef,
  /** Unmounts the disk if nothing uses it, so that another host can take it. Idempotent. */
  'disk.release': DiskRef,
  /** Finds out whether a file can be downloaded. Idempotent. */
  'disk.stat': Type.Interface([DiskRef], {
    key: Type.String({ minLength: 1, maxLength: LIMITS.shareKeyBytesMax }),
  }),
  /** Lists who holds or awaits what on the disk. */
  'disk.delegations': DiskRef,
  /** Ends the holder's exec. Idempotent. */
  'disk.revoke': Type.Interface([DiskRef], {
    clientId: Type.String({ maxLength: 255 }),
    inodeId: Type.Integer({ minimum: 0 }),
  }),
  /** Journals a sandbox and starts it; at most once. */
  'sandbox.create': Type.Interface([SandboxRef], {
    name: Type.String({ minLength: 1, maxLength: LIMITS.sandboxNameLengthMax }),
    vcpuCount: Type.Integer({ minimum: 1, maximum: LIMITS.sandboxVcpusMax }),
    memSizeMib: Type.Integer({ minimum: 1, maximum: LIMITS.sandboxMemMibMax }),
    maxTtlSeconds: Type.Integer({ minimum: 1 }),
    idleTtlSeconds: Type.Integer({ minimum: 0 }),
    maxConcurrentExecs: Type.Integer({ minimum: 1 }),
    baseImage: Type.String({ maxLength: LIMITS.imageReferenceLengthMax }),
    environment: Environment,
    waitMs,
  }),
  /** A command of the lifecycle table (`shared/sandbox-lifecycle.ts`). Idempotent by it. */
  'sandbox.command': Type.Interface([SandboxRef], {
    command: Type.Enum(['start', 'stop', 'pause', 'resume']),
    waitMs,
  }),
  /** Deletes a sandbox at rest, unless others were forked from it. Idempotent. */
  'sandbox.delete': SandboxRef,
  /** Journals a copy of the sandbox, `childId`, and starts it on the same host; at most once. */
  'sandbox.fork': Type.Interface([SandboxRef], {
    childId: Type.String({ pattern: sandboxIdPattern }),
    name: Type.String({ minLength: 1, maxLength: LIMITS.sandboxNameLengthMax }),
    /** The one that the source must have, for a caller who looked before. */
    checkpoint: Type.Optional(Type.String({ maxLength: LIMITS.sandboxCheckpointLengthMax })),
    waitMs,
  }),
  /** Sets how long the sandbox may run from now on, or be idle. Idempotent. */
  'sandbox.setLimits': Type.Interface([SandboxRef], {
    timeoutSeconds: Type.Optional(Type.Integer({ minimum: 1 })),
    idleTtlSeconds: Type.Optional(Type.Integer({ minimum: 0 })),
  }),
  /** Takes a sandbox back whose creator was told that there is none. Idempotent. */
  'sandbox.discard': SandboxRef,
  /** Runs a command in a running sandbox; at most once. */
  'sandbox.exec': Type.Interface([SandboxExecRef], {
    command: Type.String({ minLength: 1, maxLength: LIMITS.commandBytesMax }),
    environment: Environment,
    hasTerminal: Type.Boolean(),
    timeoutSeconds: Type.Optional(Type.Integer({ minimum: 1 })),
    waitMs,
  }),
  /** The newest commands, oldest first. */
  'sandbox.execs': SandboxRef,
  /** One command and what is kept of its output: the body is stdout and stderr. */
  'sandbox.execOutput': SandboxExecRef,
  /** Ends a command. Idempotent. */
  'sandbox.cancelExec': SandboxExecRef,
} as const;

export type JobKind = keyof typeof payloads;
/** Runs in a container, when its turn has come. */
export const isCommand = (kind: JobKind): boolean => kind === 'exec.run' || kind === 'grep.run';

export type SandboxJobKind = Extract<JobKind, `sandbox.${string}`>;

export type JobPayload<K extends JobKind> = Type.Static<(typeof payloads)[K]>;

/** What each kind of job answers with, over the agent link. */
export interface JobResults {
  'exec.run': ExecOutcome;
  'grep.run': GrepOutcome;
  'disk.create': Record<string, never>;
  'disk.delete': Record<string, never>;
  'disk.record': Record<string, never>;
  'disk.release': Record<string, never>;
  'disk.stat': { readonly sizeBytes: number };
  'disk.delegations': { readonly delegations: readonly Delegation[] };
  'disk.revoke': { readonly revoked: boolean };
  'sandbox.create': { readonly sandbox: SandboxRecord };
  'sandbox.command': { readonly sandbox: SandboxRecord };
  /** It is gone, unless forks stand in its way. */
  'sandbox.delete': {
    /** Ids of root disks, at most `LIMITS.dependentForksListedMax`, the deepest first. */
    readonly dependentForks?: { readonly count: number; readonly diskIds: readonly string[] };
  };
  'sandbox.fork': { readonly sandbox: SandboxRecord };
  'sandbox.setLimits': { readonly sandbox: SandboxRecord };
  'sandbox.discard': Record<string, never>;
  /** Its output is beside it when it has ended. */
  'sandbox.exec': { readonly exec: SandboxExecRecord };
  'sandbox.execs': { readonly execs: readonly SandboxExecRecord[] };
  'sandbox.execOutput': { readonly exec: SandboxExecRecord };
  'sandbox.cancelExec': { readonly exec: SandboxExecRecord };
}

/** An exclusive claim of one client on one inode of a disk (WIRE §2.3). */
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

/** A job in a host's queue. Times are milliseconds since the epoch. */
export interface JobEnvelope<K extends JobKind = JobKind> {
  readonly id: string;
  readonly kind: K;
  readonly payload: JobPayload<K>;
  /** The control node that waits for the answer. */
  readonly replyTo: string;
  readonly requestId: string;
  /** A job that is not begun by then is dropped; work that is not done by then is ended. */
  readonly deadlineAt: number;
}

/** Goes to the queue of the host's sandboxes. */
export const isSandboxJob = (job: { readonly kind: JobKind }): job is JobEnvelope<SandboxJobKind> =>
  job.kind.startsWith('sandbox.');

const Header = Type.Object({
  id: Type.String({ pattern: '^[0-9a-f-]{36}$' }),
  kind: Type.Enum(Object.keys(payloads) as JobKind[]),
  payload: Type.Object({}),
  replyTo: Type.String({ pattern: nodeIdPattern }),
  requestId: Type.String({ minLength: 1, maxLength: 64 }),
  deadlineAt: Type.Integer({ minimum: 0 }),
});

const checkHeader = compile(Header);
const checkPayload = Object.fromEntries(
  Object.entries(payloads).map(([kind, schema]) => [kind, compile(schema)]),
);

/** @throws AppError `bad_request` when a queue holds something that is not one of our jobs */
export function parseJob(data: unknown): JobEnvelope {
  const header = checkHeader(data, 'job');
  const payload = checkPayload[header.kind]?.(header.payload, 'job payload');
  return { ...header, payload } as JobEnvelope;
}
