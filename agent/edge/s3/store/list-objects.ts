import { setTimeout as sleep } from 'node:timers/promises';
import { listDirectory } from '../../../disks/disk-calls.ts';
import type { DirectoryEntry, DirectoryPage } from '../../../native/native.ts';
import type { ChecksumKind } from '../protocol/checksum.ts';
import { findDirectoryKey } from './directory-key.ts';
import { isName } from './keys.ts';
import { decodeRecord, etagOf, RECORD_ATTRIBUTE } from './object-record.ts';
import { isUnsettled, TICK_MS } from './settled-file.ts';
import { isAbsent } from './store-errors.ts';

export interface ListRequest {
  readonly prefix: string;
  /** When set, keys with it after the prefix are listed as one common prefix. */
  readonly delimiter?: string | undefined;
  /** Only keys and common prefixes after this one. */
  readonly after: string;
  readonly limit: number;
  /** Ends a long walk through directories that have no files. */
  readonly signal?: AbortSignal;
}

interface ListedObject {
  readonly key: string;
  readonly sizeBytes: number;
  readonly etag: string;
  readonly modifiedAt: Date;
  readonly checksum?: ChecksumKind | undefined;
}

export interface ObjectPage {
  readonly entries: readonly (ListedObject | { readonly prefix: string })[];
  readonly isTruncated: boolean;
  /** The key or common prefix after which the next page begins; empty when there is nothing. */
  readonly last: string;
}

export type ListedEntry = ObjectPage['entries'][number];

/** The key or common prefix of an entry. */
export const nameOf = (entry: ListedEntry): string =>
  'prefix' in entry ? entry.prefix : entry.key;

/** A page of these entries, with what follows it. */
export const pageOf = (entries: readonly ListedEntry[], isTruncated: boolean): ObjectPage => {
  const last = entries.at(-1);
  return { entries, isTruncated, last: last === undefined ? '' : nameOf(last) };
};

/** The smallest page of names that is worth scanning a directory for. */
const NAMES_MIN = 16;

/** A directory on the way through the tree. */
interface Scope {
  /** Relative to the contents; empty, or with a trailing slash. */
  readonly path: string;
  /**
   * Whether the directory's own key may be listed: it has the prefix, and comes after the bound.
   */
  readonly hasKey: boolean;
  /** The prefix of the names. */
  readonly prefix: Buffer;
  readonly after: Buffer;
}

/**
 * Lists one page of the keys with a prefix, in the order of their UTF-8 bytes, depth first. Nothing
 * is kept between pages, so each page scans every directory that it touches.
 */
export async function listObjects(contents: string, request: ListRequest): Promise<ObjectPage> {
  const entries: ListedEntry[] = [];
  for await (const entry of walk(contents, request, Buffer.from(request.after))) {
    if (entries.length === request.limit) return pageOf(entries, true);
    entries.push(entry);
  }
  return pageOf(entries, false);
}

/** All entries after a key, in order; the delimiter is a slash or none. */
export async function* walk(
  contents: string,
  request: ListRequest,
  after: Buffer,
): AsyncGenerator<ListedEntry> {
  const scope = firstScope(request, after);
  if (scope === undefined || request.limit === 0) return;
  const wanted = { ...request, limit: request.limit + 1 };
  yield* new Walk(contents, wanted).entriesOf(scope);
}

/** The directory that the prefix selects, or undefined when no key can have this prefix. */
function firstScope({ prefix, delimiter }: ListRequest, afterBytes: Buffer): Scope | undefined {
  const path = prefix.slice(0, prefix.lastIndexOf('/') + 1);
  if (path !== '' && !path.slice(0, -1).split('/').every(isName)) return undefined;
  const pathBytes = Buffer.from(path);
  const hasKey = path === prefix && path !== '' && Buffer.compare(afterBytes, pathBytes) < 0;
  const names = { path, hasKey, prefix: Buffer.from(prefix.slice(path.length)) };
  if (afterBytes.subarray(0, pathBytes.length).equals(pathBytes)) {
    const rest = afterBytes.subarray(pathBytes.length);
    // The bound is a directory: a common prefix that was listed, or else all that lies below it
    // comes after it.
    const isBefore = delimiter === undefined && rest.at(-1) === SLASH;
    return { ...names, after: isBefore ? Buffer.concat([rest, Buffer.alloc(1)]) : rest };
  }
  if (Buffer.compare(afterBytes, pathBytes) > 0) return undefined;
  return { ...names, after: Buffer.alloc(0) };
}

/** A directory whose entries are being listed. */
interface Level {
  readonly scope: Scope;
  readonly page: DirectoryPage;
  /** The index of the page's next entry. */
  next: number;
}

const SLASH = 0x2f;

class Walk {
  readonly #contents: string;
  readonly #request: ListRequest;
  /** Names held on all levels together: a deep tree must not hold a page on each level. */
  #held = 0;

  constructor(contents: string, request: ListRequest) {
    this.#contents = contents;
    this.#request = request;
  }

  /** Not by a generator for each directory: an entry would pass through those of all above it. */
  async *entriesOf(first: Scope): AsyncGenerator<ListedEntry> {
    const levels: Level[] = [];
    for (let entered: Scope | undefined = first; ;) {
      if (entered !== undefined) {
        const own = entered.hasKey
          ? await findDirectoryKey(this.#contents, entered.path)
          : undefined;
        if (own !== undefined) yield own;
        levels.push(await this.#begin(entered, entered.after));
        entered = undefined;
      }
      const level = levels.at(-1);
      if (level === undefined) return;
      const { scope, page } = level;
      const entry = page.entries[level.next];
      level.next += 1;
      if (entry === undefined) {
        levels.pop();
        this.#held -= page.entries.length;
        if (page.after !== undefined) levels.push(await this.#begin(scope, page.after));
      } else if (!entry.isDirectory) {
        yield { key: scope.path + entry.name, ...present(entry) };
      } else if (this.#request.delimiter !== undefined) {
        yield { prefix: `${scope.path}${entry.name}/` };
      } else {
        entered = childScope(scope, entry.name);
      }
    }
  }

  async #begin(scope: Scope, after: Buffer): Promise<Level> {
    const page = await this.#names({ ...scope, after });
    this.#held += page.entries.length;
    return { scope, page, next: 0 };
  }

  async #names({ path, prefix, after }: Scope): Promise<DirectoryPage> {
    const { limit, signal } = this.#request;
    signal?.throwIfAborted();
    const count = Math.max(NAMES_MIN, Math.min(limit, 4 * limit - this.#held));
    const args = [prefix, after, count, RECORD_ATTRIBUTE] as const;
    try {
      const page = await listDirectory(this.#contents, path, ...args);
      if (!page.entries.some((entry) => !entry.isDirectory && isUnsettled(entry, entry.record))) {
        return page;
      }
      await sleep(TICK_MS);
      return await listDirectory(this.#contents, path, ...args);
    } catch (error) {
      // Missing, just removed, or too deep to be opened.
      if (isAbsent(error)) return { entries: [] };
      throw error;
    }
  }
}

/** The child directory and where to start in it, since the bound may lie inside it. */
function childScope({ path, after }: Scope, name: string): Scope {
  const start = Buffer.from(`${name}/`);
  const leadsInto = after.length > start.length && after.subarray(0, start.length).equals(start);
  return {
    path: `${path}${name}/`,
    hasKey: !leadsInto,
    prefix: Buffer.alloc(0),
    after: leadsInto ? after.subarray(start.length) : Buffer.alloc(0),
  };
}

function present(entry: DirectoryEntry & { isDirectory: false }): Omit<ListedObject, 'key'> {
  const record = decodeRecord(entry.record, entry);
  return {
    sizeBytes: entry.sizeBytes,
    checksum: record?.checksum,
    etag: etagOf(record, entry),
    modifiedAt: new Date(Number(entry.mtimeNs / 1_000_000n)),
  };
}
