import type { SandboxFile } from '@berth/sdk';
import type { Attributes } from 'ssh2';

/** Bits of the type of a file, as stat(2) has them. */
const TYPE_BITS: Readonly<Record<SandboxFile['type'], number>> = {
  file: 0o100_000,
  directory: 0o040_000,
  link: 0o120_000,
  fifo: 0o010_000,
  socket: 0o140_000,
  block_device: 0o060_000,
  character_device: 0o020_000,
};

const TYPE_LETTERS: Readonly<Record<SandboxFile['type'], string>> = {
  file: '-',
  directory: 'd',
  link: 'l',
  fifo: 'p',
  socket: 's',
  block_device: 'b',
  character_device: 'c',
};

const PERMISSION_BITS = ['---', '--x', '-w-', '-wx', 'r--', 'r-x', 'rw-', 'rwx'];

const seconds = (file: SandboxFile): number => Math.floor(Date.parse(file.modified_at) / 1000);

/** The attributes of a file, in numbers. */
export function attributesOf(file: SandboxFile): Attributes {
  const time = seconds(file);
  const mode = TYPE_BITS[file.type] | Number.parseInt(file.mode, 8);
  return { mode, uid: file.uid, gid: file.gid, size: file.size, atime: time, mtime: time };
}

/** The line that `ls -l` of a client shows. */
export function longName(file: SandboxFile, name: string): string {
  const permissions = file.mode
    .slice(-3)
    .replaceAll(/./gu, (digit) => PERMISSION_BITS[Number(digit)] ?? '???');
  const [, month = '', day = '', year = '', time = ''] =
    /^\w+ (\w+) (\d+) (\d+) (\d+:\d+)/u.exec(new Date(file.modified_at).toString()) ?? [];
  const when = `${month} ${day} ${Date.now() - Date.parse(file.modified_at) > RECENT_MS ? ` ${year}` : time}`;
  const owner = `${String(file.uid).padEnd(8)} ${String(file.gid).padEnd(8)}`;
  return `${TYPE_LETTERS[file.type]}${permissions}    1 ${owner} ${String(file.size).padStart(8)} ${when} ${name}`;
}

/** Older ones are shown with their year instead of the time, as by ls. */
const RECENT_MS = 182 * 86_400_000;
