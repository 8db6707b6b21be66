import assert from 'node:assert';
import { crc32 } from 'node:zlib';
import {
  decodeRecord,
  encodeRecord,
  type FieldTypes,
  type RecordOf,
} from '../../system/binary-record.ts';
import { stuff, stuffedLengthMax, unstuff } from './byte-stuffing.ts';
import { SCHEMA_LIMITS } from '../../../shared/schemas/limits.ts';
import { KiB, MiB } from '../../../shared/units.ts';

/*
 * The channel between the host and the guest agent of a sandbox: one byte stream, a virtio-serial
 * port named `berth.guest.0` in a virtual machine, a socket in a container and in tests. This file
 * is the contract; agent/guest/wire.h repeats its numbers for C, and a test compares them.
 *
 * A frame is: u8 kind, u32 request (0: no answer is expected), the fields of the kind, u32 CRC-32
 * of everything before it; all of it stuffed, then a zero. Numbers are little-endian, texts UTF-8
 * without NUL. The guest drops an invalid frame; the host closes the channel with a
 * GuestProtocolError.
 *
 * Handshake. Every connection is an epoch: the host sends a zero and `hello` with a random epoch,
 * the guest drops all it had not sent and answers `welcome` with that epoch and the `instance` that
 * it drew when it booted. The host ignores every byte before that, then sends `list` until the last
 * page. Frames in transit at a break are lost, but no state exists only in them: output stays in
 * the guest's ring until it is acknowledged, input counts from `stdinReceived`, an exit stays in
 * the record until `forget`, and a process id is never started twice.
 *
 * Output. One offset counts both streams of a process, in the order in which the guest read them.
 * The ring keeps the last `ringMax` bytes, acknowledged or not, so that a client can attach again
 * at an older offset. While a process is followed nothing unacknowledged is dropped: the process
 * waits. For an attachable process that ends when its host leaves; then the oldest bytes go.
 *
 * Ends. `exited` follows when the shell has ended and its pipes are drained: closed, or one second
 * later. A process is kept until `forget`. An attachable one that is not followed is also evicted,
 * `retainMs` after its end or earlier when its room is needed, which `evicted` tells.
 *
 * Copies of memory. `freeze` stops every process and syncs the disks; after a restore come
 * `configure`, `recoverLocks` where disks are mounted, the `hook` of a copy, then `thaw`.
 *
 * A guest lives as long as its sandbox and its checkpoints, so it may be older than the host. It
 * refuses frames that it does not know with `invalid`, and the host then does without.
 */

/** Bounds of the channel, in bytes unless their names say otherwise. */
export const GUEST_LIMITS = {
  payloadMax: 64 * KiB,
  frameMax: 64 * KiB + 128, // Before stuffing: a payload, the other fields, kind and checksum.
  processesMax: 1000,
  commandMax: 1 * MiB,
  environmentMax: 256 * KiB,
  environmentEntriesMax: 4096,
  directoryMax: 4095,
  userMax: 255,
  ringMin: 1 * MiB, // Which a process may always keep, however little memory the guest has left.
  ringMax: 4 * MiB,
  outputMax: 16 * KiB, // In one frame: what a quiet process waits for behind a loud one.
  outputWindow: 128 * KiB, // Sent and not acknowledged, for each process.
  outputFrames: 1024, // Sent since all output of the process had been acknowledged.
  inputWindow: 64 * KiB, // Sent and not taken by the process, for each process.
  entropyMin: 32,
  entropyMax: 512,
  hostnameMax: 63,
  exportMax: 63,
  recordsPerPageMax: 256,
  freezeMsMax: 60_000,
  trimMsMax: 10_000,
  shutdownMsMax: 60_000,
  hookMax: SCHEMA_LIMITS.copyHookBytesMax,
  hookMsMax: SCHEMA_LIMITS.copyHookMsMax,
  retainMs: SCHEMA_LIMITS.processKeptMs, // How long an attachable process is kept after its end.
  hostSilenceMs: 30_000, // After that the guest takes its host for gone.
  fileOperationsMax: 48, // At the same time.
  fileRing: 512 * KiB, // For an operation on files, in place of `ringMax`.
} as const;

assert(GUEST_LIMITS.outputWindow < GUEST_LIMITS.ringMax);
assert(GUEST_LIMITS.payloadMax <= GUEST_LIMITS.inputWindow);

export const GUEST_PROTOCOL_VERSION = 4;
export const stuffedFrameMax = stuffedLengthMax(GUEST_LIMITS.frameMax);

interface Shape {
  readonly kind: number;
  readonly fields: FieldTypes;
}

const process = { id: 'id' } as const;

/** Frames from the host. */
export const hostFrames = {
  hello: { kind: 1, fields: { version: 'u16', epoch: 'id' } },
  ping: { kind: 2, fields: {} },
  /**
   * Clock, entropy, identity, network, root disk and defaults. May be repeated; the root disk only
   * once. A frozen guest also ends TCP connections that lost their other end by a pause or copy.
   */
  configure: {
    kind: 3,
    fields: {
      clockUs: 'u64',
      entropy: 'bytes16',
      hostname: 'text8',
      machineId: 'id',
      bootId: 'id',
      networkInterface: 'text8', // None when empty.
      address: 'ip4',
      prefixBits: 'u8',
      gateway: 'ip4',
      resolver: 'ip4',
      mtuBytes: 'u16',
      rootDevice: 'text8', // None when empty.
      rootType: 'text8',
      directory: 'text16', // Where processes start that name none.
      user: 'text8', // Whom processes run as that name nobody.
      environmentBytes: 'u32', // Staged before.
    },
  },
  /** Texts for the next `configure` or `start`, in pieces; none is answered. */
  stage: { kind: 4, fields: { bytes: 'rest' } },
  /** Answered by `started` once the shell was executed. */
  start: {
    kind: 5,
    fields: {
      ...process,
      flags: 'u8',
      columns: 'u16',
      rows: 'u16',
      timeoutMs: 'u32', // 0: none.
      // Staged before, in this order.
      commandBytes: 'u32',
      environmentBytes: 'u32',
      directoryBytes: 'u32',
      userBytes: 'u32',
    },
  },
  stdin: { kind: 6, fields: { ...process, offset: 'u64', bytes: 'rest' } },
  closeStdin: { kind: 7, fields: { ...process, offset: 'u64' } },
  resize: { kind: 8, fields: { ...process, columns: 'u16', rows: 'u16' } },
  signal: { kind: 9, fields: { ...process, number: 'u8' } },
  /**
   * Output comes from the offset on, or from the oldest that is left. Asked again, it begins again,
   * so that a second client is shown the past while a first one reads on.
   */
  follow: { kind: 10, fields: { ...process, offset: 'u64' } },
  unfollow: { kind: 11, fields: process },
  ack: { kind: 12, fields: { ...process, offset: 'u64' } },
  /** SIGKILL to the process's group. After its end nothing happens. */
  kill: { kind: 13, fields: process },
  forget: { kind: 14, fields: process },
  /** Answered by `records`; `next` is 0 on the last page. */
  list: { kind: 15, fields: { after: 'u32' } },
  stats: { kind: 16, fields: {} },
  freeze: { kind: 17, fields: { timeoutMs: 'u32' } },
  thaw: { kind: 18, fields: {} },
  shutdown: { kind: 19, fields: { graceMs: 'u32' } },
  /** Mounts a disk that an NFS server exports; one that is mounted there already is left alone. */
  mount: {
    kind: 20,
    fields: { server: 'ip4', isReadOnly: 'u8', export: 'text8', path: 'text16' },
  },
  trim: { kind: 26, fields: { budgetMs: 'u32' } },
  /** An operation on files (agent/guest/file-task.h) runs as a process that ends with its host. */
  files: { kind: 22, fields: { ...process, operation: 'rest' } },
  readClock: { kind: 23, fields: {} },
  /** The time of day when the guest's monotonic clock read zero. */
  setClock: { kind: 24, fields: { zeroUs: 'u64' } },
  hook: { kind: 25, fields: { timeoutMs: 'u32', command: 'text16' } },
  /** In a frozen guest: its kernel asks the servers of its disks for all locks that it had. */
  recoverLocks: { kind: 27, fields: {} },
} as const satisfies Record<string, Shape>;

/** Frames from the guest: first answers, then those that it sends unasked. */
export const guestFrames = {
  welcome: { kind: 64, fields: { version: 'u16', epoch: 'id', instance: 'id' } },
  done: { kind: 65, fields: {} },
  failed: { kind: 66, fields: { code: 'u16', errno: 'u16', step: 'text8' } },
  started: { kind: 67, fields: { pid: 'u32' } },
  followed: { kind: 68, fields: { offset: 'u64' } },
  records: { kind: 69, fields: { next: 'u32', records: 'rest' } },
  figures: {
    kind: 70,
    fields: {
      memoryBytes: 'u64',
      availableBytes: 'u64',
      ringBytes: 'u64',
      processes: 'u32',
      outOfMemoryKills: 'u64',
    },
  },
  time: { kind: 71, fields: { realUs: 'u64', monotonicUs: 'u64' } },
  hooked: { kind: 72, fields: { flags: 'u8', status: 'u8' } }, // `flags` as in `exited`.
  output: { kind: 80, fields: { ...process, stream: 'u8', offset: 'u64', bytes: 'rest' } },
  exited: {
    kind: 81,
    fields: { ...process, flags: 'u8', status: 'u8', end: 'u64', sinceEndMs: 'u64' },
  },
  taken: { kind: 82, fields: { ...process, offset: 'u64' } },
  /** Sent once: by `shutdown`, or by a signal to PID 1 from inside. */
  poweringOff: { kind: 83, fields: { isRequested: 'u8' } },
  evicted: { kind: 84, fields: process },
} as const satisfies Record<string, Shape>;

/** Bits of `flags` in `start`, in a process record, and (how it ended) in `exited`. */
export const PROCESS_FLAGS = {
  terminal: 1,
  stdin: 2, // Open for more.
  followed: 4,
  exited: 8,
  signalled: 16,
  session: 32, // For processes that clients attach to: kept for `retainMs` after its end, then evicted.
  killed: 64,
  timedOut: 128,
} as const;

/** Why the guest refused a request. */
export const GUEST_FAILURES = {
  invalid: 1,
  unknownProcess: 2,
  processExists: 3,
  tooManyProcesses: 4,
  notConfigured: 5,
  frozen: 6,
  busy: 7,
  system: 8, // `errno` and `step` say more.
  timeout: 9,
  unsupported: 10,
} as const;

/** Fields of a process in a page of `list`. */
const processRecord = {
  id: 'id',
  pid: 'u32',
  flags: 'u8',
  status: 'u8', // Exit code, or the signal's number.
  columns: 'u16',
  rows: 'u16',
  reserved: 'u16',
  oldest: 'u64', // Output that is still there.
  end: 'u64',
  acked: 'u64',
  stdinReceived: 'u64',
  stdinTaken: 'u64',
  sinceEndMs: 'u64', // 0 while it runs.
} as const satisfies FieldTypes;
export const processRecordBytes = 76;

type HostFrames = typeof hostFrames;
type GuestFrames = typeof guestFrames;
type FrameOf<Frames extends Record<string, Shape>> = {
  [T in keyof Frames]: { type: T; request: number } & RecordOf<Frames[T]['fields']>;
}[keyof Frames];

export type HostFrame = FrameOf<HostFrames>;
export type GuestFrame = FrameOf<GuestFrames>;
export type GuestProcessRecord = Omit<RecordOf<typeof processRecord>, 'sinceEndMs'> & {
  /**
   * By the host's clock, in milliseconds since the epoch. The guest reports it, so it may be false.
   */
  readonly endedAt: number;
};

/**
 * Converts a time since an end into a time of day by the host's clock. The guest sends no time of
 * day, because its clock may be wrong or set by its owner. A hostile guest may send any number.
 */
export const endedAtOf = (sinceEndMs: number): number => Math.max(0, Date.now() - sinceEndMs);

const HEAD_BYTES = 5;
const CHECKSUM_BYTES = 4;

function encode(frames: Record<string, Shape>, frame: { type: string; request: number }): Buffer {
  const shape = frames[frame.type];
  if (shape === undefined) throw new Error(`no such frame: ${frame.type}`);
  const head = Buffer.alloc(HEAD_BYTES);
  head.writeUInt8(shape.kind);
  head.writeUInt32LE(frame.request, 1);
  const body = encodeRecord(shape.fields, frame as never);
  const checksum = Buffer.alloc(CHECKSUM_BYTES);
  checksum.writeUInt32LE(crc32(body, crc32(head)));
  const whole = Buffer.concat([head, body, checksum]);
  if (whole.length > GUEST_LIMITS.frameMax) throw new Error(`frame ${frame.type} is too long`);
  return stuff(whole);
}

function decode(frames: Record<string, Shape>, stuffed: Buffer): unknown {
  if (stuffed.length > stuffedFrameMax) throw new Error('frame is too long');
  const whole = unstuff(stuffed);
  const end = whole.length - CHECKSUM_BYTES;
  if (end < HEAD_BYTES) throw new Error('frame is too short');
  if (crc32(whole.subarray(0, end)) !== whole.readUInt32LE(end)) {
    throw new Error('frame has a wrong checksum');
  }
  const kind = whole.readUInt8();
  const found = Object.entries(frames).find(([, shape]) => shape.kind === kind);
  if (found === undefined) throw new Error(`frame has the unknown kind ${kind}`);
  const [type, { fields }] = found;
  const record = decodeRecord(fields, whole.subarray(HEAD_BYTES, end));
  return { type, request: whole.readUInt32LE(1), ...record };
}

/** @throws Error when a value does not fit its field, or the frame is longer than one may be */
export const encodeHostFrame = (frame: HostFrame): Buffer => encode(hostFrames, frame);
/** @throws Error when a value does not fit its field, or the frame is longer than one may be */
export const encodeGuestFrame = (frame: GuestFrame): Buffer => encode(guestFrames, frame);

/** @param stuffed what lay between two zeros. @throws Error when it is not a frame of the host */
export const decodeHostFrame = (stuffed: Buffer): HostFrame =>
  decode(hostFrames, stuffed) as HostFrame;
/** @param stuffed what lay between two zeros. @throws Error when it is not a frame of the guest */
export const decodeGuestFrame = (stuffed: Buffer): GuestFrame =>
  decode(guestFrames, stuffed) as GuestFrame;

/** @throws Error when the bytes are not a whole number of records, or too many */
export function decodeProcessRecords(bytes: Buffer): GuestProcessRecord[] {
  const count = bytes.length / processRecordBytes;
  if (!Number.isInteger(count) || count > GUEST_LIMITS.recordsPerPageMax) {
    throw new Error('page of process records has a wrong length');
  }
  return Array.from({ length: count }, (_, index) => {
    const from = index * processRecordBytes;
    const fields = bytes.subarray(from, from + processRecordBytes);
    const { sinceEndMs, ...record } = decodeRecord(processRecord, fields);
    return { ...record, endedAt: endedAtOf(sinceEndMs) };
  });
}
