import { constants } from 'node:os';
import { AppError, type ErrorCode } from '../../../shared/errors.ts';
import type { FileOperation } from '../../../shared/links/files-protocol.ts';

/*
 * Requests to the guest agent about files, and its answers (agent/guest/file-task.h). Pure.
 */

const KINDS: Readonly<Record<FileOperation['type'], number>> = {
  read: 1,
  write: 2,
  stat: 3,
  list: 4,
  makeDirectory: 5,
  move: 6,
  remove: 7,
  watch: 8,
};

const FLAGS = {
  follow: 1,
  parents: 2,
  exclusive: 4,
  unchanged: 8,
  sync: 16,
  recursive: 32,
  overwrite: 64,
} as const;

/** An operation's options that its caller does not choose. */
export interface MoreAsked {
  /** Nothing may exist at the path. */
  readonly exclusive?: boolean;
  /** The file found at the beginning must still be there at the end. */
  readonly unchanged?: boolean;
}

const UNASKED = 0xffff_ffff;

function number(bytes: number, value: number): Buffer {
  const field = Buffer.alloc(bytes);
  field.writeUIntLE(value, 0, bytes);
  return field;
}

const text = (bytes: Buffer): Buffer => Buffer.concat([number(2, bytes.length), bytes]);
const pathOf = (encoded: string | undefined): Buffer => Buffer.from(encoded ?? '', 'base64url');

/** An operation as the guest agent reads it. */
export function encodeOperation(operation: FileOperation, more: MoreAsked): Buffer {
  const asked: Partial<Record<keyof typeof FLAGS, boolean | undefined>> = { ...operation, ...more };
  const flags = Object.entries(FLAGS).reduce(
    (sum, [name, bit]) => sum + (asked[name as keyof typeof FLAGS] === true ? bit : 0),
    0,
  );
  const { type, mode, uid, gid, limit, path, to, after } = operation;
  return Buffer.concat([
    ...[number(1, KINDS[type]), number(1, flags)],
    ...[mode, uid, gid].map((value) => number(4, value ?? UNASKED)),
    ...[number(4, limit ?? 0), text(pathOf(path)), text(pathOf(to ?? after))],
  ]);
}

/** The shown part of stat(2) of a file. */
export interface FileStat {
  readonly type: FileType;
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
  /** May be more than a number holds exactly. */
  readonly size: bigint;
  readonly ino: bigint;
  readonly mtimeNs: bigint;
  readonly ctimeNs: bigint;
  readonly mtime: Date;
}

export const FILE_STAT_BYTES = 51;

const TYPES = {
  1: 'fifo',
  2: 'character_device',
  4: 'directory',
  6: 'block_device',
  8: 'file',
  10: 'link',
  12: 'socket',
} as const;
type FileType = (typeof TYPES)[keyof typeof TYPES];

const SIZE_MAX = 2n ** 63n - 1n; // The largest loff_t; only a sparse file is nearly as long.
const DAY_MS_MAX = 8_640_000_000_000_000n; // The last moment of Date (ECMA-262, section 21.4.1.1).
const FOUR_DIGITS_MS = 253_402_300_799_999n; // The end of the year 9999, for RFC 3339.

/** A time that the guest reports, which may be anything, clamped to what RFC 3339 can express. */
function toDate(ns: bigint): Date {
  const ms = ns / 1_000_000n;
  const within = ms > FOUR_DIGITS_MS ? FOUR_DIGITS_MS : ms < 0n ? 0n : ms;
  return new Date(Number(within < DAY_MS_MAX ? within : DAY_MS_MAX));
}

const moment = (bytes: Buffer, at: number): bigint =>
  bytes.readBigInt64LE(at) * 1_000_000_000n + BigInt(bytes.readUInt32LE(at + 8));

/** @throws Error when the bytes do not describe a file of Linux */
export function decodeFileStat(bytes: Buffer): FileStat {
  const type = TYPES[bytes.readUInt8(0) as keyof typeof TYPES] as FileType | undefined;
  const mode = bytes.readUInt16LE(1);
  const size = bytes.readBigUInt64LE(11);
  if (type === undefined || mode > 0o7777) throw new Error('no such type of file');
  if (size > SIZE_MAX) throw new Error('no file is so large');
  const mtimeNs = moment(bytes, 27);
  return {
    ...{ type, mode, size, mtimeNs, mtime: toDate(mtimeNs) },
    uid: bytes.readUInt32LE(3),
    gid: bytes.readUInt32LE(7),
    ino: bytes.readBigUInt64LE(19),
    ctimeNs: moment(bytes, 39),
  };
}

const RESULTS = {
  notAFile: 4096,
  changed: 4097,
  tooDeep: 4098,
  tooMany: 4099,
  unseen: 4100,
} as const;

type Told = readonly [code: ErrorCode, message: string];

/** The caller's view of the guest's error numbers. */
const ERRORS: Readonly<Record<string, Told>> = {
  ENOENT: ['not_found', 'there is nothing at this path, or a directory above it is missing'],
  ENOTDIR: ['not_a_directory', 'a part of the path is not a directory'],
  EISDIR: ['is_a_directory', 'there is a directory at this path'],
  EEXIST: ['file_exists', 'there is something at this path already'],
  ENOTEMPTY: ['directory_not_empty', 'the directory is not empty: ask for recursive removal'],
  ELOOP: ['link_not_followed', 'a link of the path is not followed'],
  EXDEV: ['other_file_system', 'the paths are on different file systems: copy and remove it'],
  EBUSY: ['file_busy', 'it is in use, or another file system is mounted there'],
  ETXTBSY: ['file_busy', 'it is a program that runs'],
  EAGAIN: ['file_busy', 'it is locked by a program'],
  ENOSPC: ['no_space', 'the file system is full'],
  EDQUOT: ['no_space', 'a quota of the file system is used up'],
  EACCES: ['permission_denied', 'the file system does not allow it'],
  EPERM: ['permission_denied', 'the file system does not allow it'],
  EROFS: ['permission_denied', 'the file system is read-only'],
  EOPNOTSUPP: ['permission_denied', 'the file system cannot do this'],
  EFBIG: ['file_too_large', 'the file system takes no files as large as this'],
  EOVERFLOW: ['file_too_large', 'the file is too large'],
  EINVAL: ['bad_request', 'the file system does not know such an owner, mode or name'],
  ENAMETOOLONG: ['bad_request', 'a name in the path is too long'],
  ENOMEM: ['no_capacity', 'the sandbox has no memory left for this'],
  EMFILE: ['no_capacity', 'the sandbox has no descriptors left for this'],
  ENFILE: ['no_capacity', 'the sandbox has no descriptors left for this'],
};

const UNSEEN =
  'a disk is mounted there, and a virtual machine is not told what others change on it: ' +
  'watch directories beside it, and list those of the disk from time to time';

/** The failure that a result of the guest stands for; undefined when it stands for none. */
export function failureOf(result: number, unchanged = false): AppError | undefined {
  if (result === 0) return undefined;
  switch (result) {
    case RESULTS.notAFile:
      return new AppError('not_a_file', 'there is a FIFO, a socket or a device at this path');
    case RESULTS.changed:
      return unchanged
        ? new AppError('precondition_failed', 'the file was changed meanwhile')
        : new AppError('file_busy', 'the file was replaced at this moment; try again');
    case RESULTS.tooDeep:
      return new AppError('bad_request', 'the directories are nested too deeply');
    case RESULTS.tooMany:
      return new AppError('rate_limited', 'too many directories or watches: watch fewer');
    case RESULTS.unseen:
      return new AppError('other_file_system', UNSEEN);
    default: {
      const [name = ''] = Object.entries(constants.errno).find(([, no]) => no === result) ?? [];
      const [code, message] = ERRORS[name] ?? ['unavailable', `the file system failed: ${name}`];
      return new AppError(code, message);
    }
  }
}
