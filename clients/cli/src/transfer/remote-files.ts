import { decodePath, type Disk, type FileContent, type Sandbox } from '@berth/sdk';
import { orUndefined } from '../find.ts';

/** The content of a remote file. */
type RemoteContent = AsyncIterable<Uint8Array> & { readonly size: number | undefined };

/** Something below a remote directory. */
export interface RemoteEntry {
  /** From the directory that was listed, without a leading slash. */
  readonly path: string;
  /** The same, where it is not UTF-8. */
  readonly bytes?: Uint8Array | undefined;
  readonly type: 'file' | 'directory' | 'other';
  readonly size: number;
  readonly modifiedAt: Date | undefined;
  readonly etag: string | undefined;
  /** Permission bits, where they are known. */
  readonly mode: number | undefined;
  readonly read: () => Promise<RemoteContent>;
}

/** Operations on a disk or a sandbox that transfers need. */
export interface RemoteFiles {
  /** The type of what is at a remote path; undefined when nothing is. */
  typeOf(path: string): Promise<RemoteEntry['type'] | undefined>;
  /** Everything below a directory, at any depth. */
  list(directory: string): AsyncIterable<RemoteEntry>;
  read(path: string): Promise<RemoteContent>;
  write(path: string, content: FileContent, mode: number | undefined): Promise<void>;
  makeDirectory(path: string): Promise<void>;
  remove(path: string): Promise<void>;
}

const octal = (mode: number | undefined): string | undefined => mode?.toString(8);

/** Paths of a disk have no slash in front, and no segments that are empty or `.`. */
const keyOf = (path: string): string => path.replaceAll(/(?<=^|\/)(?:\.?\/|\.$)/gu, '');

export function filesOfDisk({ files }: Disk): RemoteFiles {
  return {
    async typeOf(path) {
      const key = keyOf(path).replace(/\/$/u, '');
      if (key === '') return 'directory';
      if ((await orUndefined(files.stat(key))) !== undefined) return 'file';
      // A directory that was put as an object is the first entry of itself, which the client leaves
      // out.
      for await (const _entry of files.list(key, { limit: 2 })) return 'directory';
      return (await orUndefined(files.stat(`${key}/`))) && 'directory';
    },
    async *list(directory) {
      const root = keyOf(directory).replace(/\/$/u, '');
      const from = root === '' ? 0 : root.length + 1;
      for await (const { path, type, size = 0, modified_at: time, etag } of files.list(root, {
        recursive: true,
      })) {
        const modifiedAt = time === undefined ? undefined : new Date(time);
        yield {
          path: path.slice(from),
          type,
          size,
          modifiedAt,
          etag,
          mode: undefined,
          read: () => files.read(path),
        };
      }
    },
    read: (path) => files.read(keyOf(path)),
    async write(path, content, mode) {
      await files.write(keyOf(path), content, { mode: octal(mode) });
    },
    async makeDirectory(path) {
      if (keyOf(path) !== '') await files.makeDirectory(keyOf(path));
    },
    remove: (path) => files.remove(keyOf(path)),
  };
}

/** Paths in a sandbox are absolute: others begin at its root. */
const absolute = (path: string): string => (path.startsWith('/') ? path : `/${path}`);

const TYPES: Readonly<Record<string, RemoteEntry['type']>> = {
  file: 'file',
  directory: 'directory',
};

export function filesOfSandbox({ files }: Sandbox): RemoteFiles {
  return {
    async typeOf(path) {
      const found = await orUndefined(files.stat(absolute(path)));
      return found && (TYPES[found.type] ?? 'other');
    },
    async *list(directory) {
      const root = absolute(directory).replace(/\/+$/u, '');
      for await (const entry of files.list(root || '/', { recursive: true })) {
        const { path, type, size, mode, modified_at: time, etag } = entry;
        const given = decodePath(entry);
        const isText = typeof given === 'string';
        yield {
          path: path.slice(root.length + 1),
          bytes: isText ? undefined : given.subarray(Buffer.byteLength(root) + 1),
          type: TYPES[type] ?? 'other',
          size,
          modifiedAt: time === undefined ? undefined : new Date(time),
          etag,
          mode: mode === undefined ? undefined : Number.parseInt(mode, 8) & 0o777,
          read: () => files.read(given),
        };
      }
    },
    read: (path) => files.read(absolute(path)),
    async write(path, content, mode) {
      const given = octal(mode);
      await files.write(absolute(path), content, {
        parents: true,
        ...(given === undefined ? {} : { mode: given }),
      });
    },
    async makeDirectory(path) {
      await files.makeDirectory(absolute(path), { parents: true });
    },
    remove: (path) => files.remove(absolute(path)),
  };
}
