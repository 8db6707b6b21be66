import type { CallOptions, CallPolicy, Http } from '../http.ts';
import { Pages } from '../pages.ts';
import { LinkedSignal } from '../timing.ts';
import { xmlElements, xmlText } from '../xml.ts';
import { type FileContent, isRepeatable, toBody } from './content.ts';
import { downloadHeaders, etagOf, FileDownload, type FileRange, rangeHeader } from './download.ts';
import { encodeKey } from './paths.ts';
import type { FetchAnswer } from '../transport.ts';

/** A file or directory of a disk. */
export interface DiskFile {
  /** From the root of the disk. */
  readonly path: string;
  /** A directory has nothing but its path. */
  readonly type: 'file' | 'directory';
  /** In bytes. */
  readonly size?: number | undefined;
  readonly modified_at?: string | undefined;
  /** Changes with the content. */
  readonly etag?: string | undefined;
}

/** Options of {@link DiskFiles.read}. */
export interface ReadDiskFileOptions extends CallOptions, FileRange {
  /** Only while the file has this tag. */
  readonly ifMatch?: string | undefined;
}

/** Options of {@link DiskFiles.write}. */
export interface WriteDiskFileOptions extends CallOptions {
  /** Media type for downloads; guessed from its name by default. */
  readonly contentType?: string | undefined;
  /** Octal, at most `777`; 644 for a new one. */
  readonly mode?: string | undefined;
  /** Numbers of its user and group; root for a new one. */
  readonly uid?: number | undefined;
  readonly gid?: number | undefined;
  /** Only while the file has this tag. */
  readonly ifMatch?: string | undefined;
  /** Only if there is nothing at the path. */
  readonly ifAbsent?: boolean | undefined;
}

/** Options of {@link DiskFiles.list}. */
export interface ListDiskFilesOptions extends CallOptions {
  /** All files below it, and no directories but those that were put as objects. */
  readonly recursive?: boolean | undefined;
  /** How many a page has, 1 to 1000. */
  readonly limit?: number | undefined;
}

const RETRIES = 5;
const READ = { retry: 'repeatable' } as const;
const PAGE = 1000;

const numberText = (value: number | undefined): string | undefined => value?.toString();

function fileOf(xml: string): DiskFile {
  const path = decodeURIComponent(xmlText(xml, 'Key') ?? '');
  if (path.endsWith('/')) return { path: path.slice(0, -1), type: 'directory' };
  return {
    path,
    type: 'file',
    size: Number(xmlText(xml, 'Size')),
    modified_at: xmlText(xml, 'LastModified'),
    etag: xmlText(xml, 'ETag'),
  };
}

/** Entries of a page of ListObjectsV2, in the order of the paths; directories once. */
function entriesOf(xml: string, prefix: string): DiskFile[] {
  const directories = xmlElements(xml, 'CommonPrefixes').map((each): DiskFile => {
    const path = decodeURIComponent(xmlText(each, 'Prefix') ?? '').replace(/\/$/u, '');
    return { path, type: 'directory' };
  });
  const files = xmlElements(xml, 'Contents').map(fileOf);
  // A directory that was put as an object is listed in itself, too.
  const entries = [...directories, ...files].filter(({ path }) => `${path}/` !== prefix);
  return entries.sort((one, other) => (one.path < other.path ? -1 : 1));
}

/**
 * Files of a disk, by its object API: whether a command runs on the disk or not. Paths begin at the
 * root of the disk. What commands are better at (moving, removing trees) is done by `disk.exec`.
 *
 * @example
 * await disk.files.write('in/data.csv', csv);
 * for await (const { path, size } of disk.files.list('in')) console.log(path, size);
 */
export class DiskFiles {
  readonly #http: Http;
  readonly #diskId: string;

  /** @internal */
  constructor(http: Http, diskId: string) {
    this.#http = http;
    this.#diskId = diskId;
  }

  /**
   * Opens a file of any size, or a part of it, to be read as it comes.
   * @throws NotFoundError `NoSuchKey`, PreconditionError
   */
  async read(path: string, options: ReadDiskFileOptions = {}): Promise<FileDownload> {
    const { offset, length, ifMatch, ...call } = options;
    const request = { method: 'GET', path: this.#url(path) } as const;
    const fetch = (range: string | undefined, etag: string | undefined): Promise<FetchAnswer> =>
      this.#http.content(READ, call, { ...request, headers: downloadHeaders(range, etag) });
    const response = await fetch(rangeHeader({ offset, length }), ifMatch);
    const { retries = RETRIES, signal } = call;
    return new FileDownload(response, fetch, { retries, signal });
  }

  /** All of a file, or of a part of it. @throws as {@link read} */
  async readBytes(
    path: string,
    options: ReadDiskFileOptions = {},
  ): Promise<Uint8Array<ArrayBuffer>> {
    return (await this.read(path, options)).bytes();
  }

  /** The same as text in UTF-8. @throws as {@link read} */
  async readText(path: string, options: ReadDiskFileOptions = {}): Promise<string> {
    return (await this.read(path, options)).text();
  }

  /**
   * Writes a file of up to 5 GiB, in place of one that is there, and makes the directories above
   * it. It appears in one step, and is durable then. Repeated as `SandboxFiles.write`; without a
   * limit of time by default.
   * @throws PreconditionError; ConflictError `OperationAborted`: a file is in the way of a
   * directory, or the other way round
   */
  async write(
    path: string,
    content: FileContent,
    options: WriteDiskFileOptions = {},
  ): Promise<{ readonly etag: string }> {
    const { contentType, mode, uid, gid, ifMatch, ifAbsent = false, signal, ...call } = options;
    const isConditional = ifMatch !== undefined || ifAbsent;
    const retry = !isRepeatable(content) ? 'never' : isConditional ? 'refused' : 'repeatable';
    const policy: CallPolicy = { retry, attemptMs: Infinity, timeoutMs: Infinity };
    const ended = new LinkedSignal(signal);
    try {
      const { headers } = await this.#http.content(
        policy,
        { ...call, signal: ended.signal },
        {
          method: 'PUT',
          path: this.#url(path),
          headers: {
            'content-type': contentType,
            'x-service-mode': mode,
            'x-service-uid': numberText(uid),
            'x-service-gid': numberText(gid),
            'if-match': ifMatch,
            'if-none-match': ifAbsent ? '*' : undefined,
          },
          body: (end) => toBody(content, { signal: end, failed: (error) => ended.abort(error) }),
        },
      );
      return { etag: etagOf(headers) ?? '' };
    } finally {
      ended.release();
    }
  }

  /** A file's size, time and type. @throws NotFoundError */
  async stat(path: string, options: CallOptions = {}): Promise<DiskFile> {
    const { headers } = await this.#http.content(READ, options, {
      method: 'HEAD',
      path: this.#url(path),
      headers: downloadHeaders(),
    });
    const length = headers.get('content-length');
    return {
      path: path.replace(/^\//u, ''),
      type: 'file',
      size: length === null ? undefined : Number(length),
      modified_at: new Date(headers.get('last-modified') ?? 0).toISOString(),
      etag: etagOf(headers),
    };
  }

  /** Lists a directory; `''` is the root. Empty for a directory that is not there. */
  list(
    directory = '',
    { recursive = false, limit = PAGE, ...call }: ListDiskFilesOptions = {},
  ): Pages<DiskFile> {
    const path = directory.replaceAll(/^\/|\/$/gu, '');
    const prefix = path === '' ? '' : `${path}/`;
    return new Pages(async (cursor) => {
      const query = new URLSearchParams({
        'list-type': '2',
        'encoding-type': 'url',
        'max-keys': String(limit),
        prefix,
      });
      if (!recursive) query.set('delimiter', '/');
      if (cursor !== undefined) query.set('continuation-token', cursor);
      const request = { method: 'GET', path: `/${this.#diskId}?${query}` } as const;
      const xml = await this.#http.text(READ, call, request);
      const nextCursor = xmlText(xml, 'NextContinuationToken');
      return { items: entriesOf(xml, prefix), nextCursor };
    });
  }

  /** Makes an empty directory. Writing a file makes those above it, too. */
  async makeDirectory(path: string, options: CallOptions = {}): Promise<void> {
    const url = `${this.#url(path).replace(/\/$/u, '')}/`;
    await this.#http.content(READ, options, { method: 'PUT', path: url, body: async () => '' });
  }

  /**
   * Removes a file, or, with `/` at the end of the path, an empty directory. Nothing happens when
   * it is not there.
   */
  async remove(path: string, options: CallOptions = {}): Promise<void> {
    await this.#http.content(READ, options, { method: 'DELETE', path: this.#url(path) });
  }

  #url(path: string): string {
    return `/${this.#diskId}/${encodeKey(path)}`;
  }
}
