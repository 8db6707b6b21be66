import { createReadStream } from 'node:fs';
import { type FileHandle, open, rename, unlink } from 'node:fs/promises';
import { createInterface } from 'node:readline';
import { errnoOf, toError } from '../../../shared/errors.ts';
import { parseJson } from '../../../shared/json.ts';
import type { Logger } from '../../../shared/log.ts';
import { SerialQueue } from '../../system/queues/serial-queue.ts';

/** The state of a file when it was the same as its object. */
export interface IndexRow {
  /** From the root of the disk's contents; also the object's key, below the prefix. */
  readonly path: string;
  /** The object's ETag. */
  readonly etag: string;
  readonly modifiedMs: number;
  /** Size of the object and of the file. */
  readonly sizeBytes: number;
  readonly inode: bigint;
  readonly mtimeNs: bigint;
  readonly ctimeNs: bigint;
  /** The file was empty but for its size when this was written. */
  readonly isPlaceholder: boolean;
}

type Line = readonly [
  path: string,
  etag?: string,
  modifiedMs?: number,
  sizeBytes?: number,
  inode?: string,
  mtimeNs?: string,
  ctimeNs?: string,
  isPlaceholder?: 0 | 1,
];

/** An upload of this path may have been made, whose object has this mark. */
interface PendingLine {
  readonly pending: readonly [path: string, mark: string];
}

const toLine = (row: IndexRow): string => {
  const { path, etag, modifiedMs, sizeBytes, inode, mtimeNs, ctimeNs, isPlaceholder } = row;
  const stamps = [String(inode), String(mtimeNs), String(ctimeNs)] as const;
  const line: Line = [path, etag, modifiedMs, sizeBytes, ...stamps, isPlaceholder ? 1 : 0];
  return `${JSON.stringify(line)}\n`;
};

const toPendingLine = (path: string, mark: string): string =>
  `${JSON.stringify({ pending: [path, mark] } satisfies PendingLine)}\n`;

interface LoadedLine {
  readonly path: string;
  readonly row?: IndexRow | undefined;
  readonly mark?: string | undefined;
}

function fromLine(text: string): LoadedLine | undefined {
  try {
    const line = parseJson(text) as Line | PendingLine;
    if ('pending' in line) return { path: line.pending[0], mark: line.pending[1] };
    const [path, etag, modifiedMs = 0, sizeBytes = 0, inode = '0', mtime = '0', ctime = '0'] = line;
    if (etag === undefined) return { path };
    const stamps = { inode: BigInt(inode), mtimeNs: BigInt(mtime), ctimeNs: BigInt(ctime) };
    const isPlaceholder = line[7] === 1;
    return { path, row: { path, etag, modifiedMs, sizeBytes, ...stamps, isPlaceholder } };
  } catch {
    return undefined; // A line that a crash cut off.
  }
}

/** Ends a line that a crash or a full disk may have cut off. */
const CUT_OFF = '\n';

/** Obsolete lines are dropped at the next start once there are so many of them. */
const STALE_LINES_MAX = 10_000;

/**
 * Maps each file to its object. A file of lines on the disk itself, so that it moves with the disk;
 * the last line of a path counts. A line that a crash loses costs an upload or a listing, never
 * data.
 */
export class DiskIndex {
  readonly #path: string;
  readonly #rows = new Map<string, IndexRow>();
  readonly #byInode = new Map<bigint, IndexRow>();
  /** Marks of uploads whose answers are not known, by path. */
  readonly #pending = new Map<string, string>();
  readonly #syncs = new SerialQueue();
  #file: FileHandle;
  #unwritten: string[] = [];
  #bytes = 0;

  private constructor(path: string, file: FileHandle) {
    this.#path = path;
    this.#file = file;
  }

  static async open(path: string, log: Logger): Promise<DiskIndex> {
    const index = new DiskIndex(path, await open(path, 'a', 0o600));
    try {
      const lines = await index.#load();
      const current = index.#rows.size + index.#pending.size;
      if (lines > current + STALE_LINES_MAX) {
        await index.#compact().catch((error: unknown) => {
          log.warn({ path, err: toError(error) }, 'bucket:indexNotCompacted');
        });
      }
      return index;
    } catch (error) {
      await index.#file.close();
      throw error;
    }
  }

  get size(): number {
    return this.#rows.size;
  }

  /** Bytes of all objects together. */
  get bytes(): number {
    return this.#bytes;
  }

  rows(): IterableIterator<IndexRow> {
    return this.#rows.values();
  }

  get(path: string): IndexRow | undefined {
    return this.#rows.get(path);
  }

  ofInode(inode: bigint): IndexRow | undefined {
    return this.#byInode.get(inode);
  }

  /** Paths that may have been uploaded without an answer. */
  pendingPaths(): IterableIterator<string> {
    return this.#pending.keys();
  }

  pendingMark(path: string): string | undefined {
    return this.#pending.get(path);
  }

  /**
   * Notes an upload of the path, which begins once this is durable. The path's next record ends it.
   */
  setPending(path: string, mark: string): void {
    this.#pending.set(path, mark);
    this.#unwritten.push(toPendingLine(path, mark));
  }

  /** Nothing is pending: the file is what its row says. */
  clearPending(path: string): void {
    if (!this.#pending.has(path)) return;
    const row = this.#rows.get(path);
    if (row === undefined) this.delete(path);
    else this.set(row);
  }

  set(row: IndexRow): void {
    this.#forget(row.path);
    this.#rows.set(row.path, row);
    this.#byInode.set(row.inode, row);
    this.#bytes += row.sizeBytes;
    this.#unwritten.push(toLine(row));
  }

  delete(path: string): void {
    if (!this.#forget(path)) return;
    this.#unwritten.push(`${JSON.stringify([path])}\n`);
  }

  /**
   * Makes what was set so far durable. When that fails, as on a full disk, the next call repeats
   * it.
   */
  sync(): Promise<void> {
    return this.#syncs.add(() => this.#write());
  }

  async close(): Promise<void> {
    try {
      await this.sync();
    } finally {
      await this.#file.close();
    }
  }

  async #write(): Promise<void> {
    const lines = this.#unwritten;
    if (lines.length === 0) return;
    this.#unwritten = [];
    try {
      await this.#file.appendFile(lines.join(''));
      await this.#file.datasync();
    } catch (error) {
      if (lines[0] !== CUT_OFF) lines.unshift(CUT_OFF);
      this.#unwritten = [...lines, ...this.#unwritten];
      throw error;
    }
  }

  #forget(path: string): boolean {
    const wasPending = this.#pending.delete(path);
    const row = this.#rows.get(path);
    if (row === undefined) return wasPending;
    this.#rows.delete(path);
    if (this.#byInode.get(row.inode) === row) this.#byInode.delete(row.inode);
    this.#bytes -= row.sizeBytes;
    return true;
  }

  async #load(): Promise<number> {
    let lines = 0;
    const input = createReadStream(this.#path, 'utf8');
    for await (const text of createInterface({ input, crlfDelay: Infinity })) {
      const line = fromLine(text);
      lines += 1;
      if (line === undefined) continue;
      if (line.mark !== undefined) this.#pending.set(line.path, line.mark);
      else if (line.row === undefined) this.#forget(line.path);
      else this.set(line.row);
    }
    this.#unwritten = lines === 0 ? [] : [CUT_OFF];
    return lines;
  }

  /** Writes the file anew. When that fails, as on a disk that is full, the former one goes on. */
  async #compact(): Promise<void> {
    const next = `${this.#path}.next`;
    const file = await open(next, 'w', 0o600);
    try {
      const lines = [...this.#rows.values()].map(toLine);
      for (const each of this.#pending) lines.push(toPendingLine(...each));
      await file.appendFile(lines.join(''));
      await file.datasync();
      await rename(next, this.#path);
    } catch (error) {
      await file.close();
      await unlink(next);
      throw error;
    }
    const former = this.#file;
    this.#file = file;
    this.#unwritten = [];
    await former.close();
  }
}

/** Whether an error says that something is not there. */
export const isAbsent = (error: unknown): boolean =>
  ['ENOENT', 'ENOTDIR'].includes(errnoOf(error) ?? '');
