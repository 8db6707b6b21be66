import { posix } from 'node:path';
import { NotFoundError, type Sandbox, type SandboxFile, type SandboxFiles } from '@berth/sdk';
import ssh2, { type Attributes, type FileEntry } from 'ssh2';
import { attributesOf, longName } from './attributes.ts';
import { Download } from './download.ts';
import { missing, Refused } from './failure.ts';
import { modeOfNew, SandboxPaths } from './paths.ts';
import { Upload } from './upload.ts';

const { OPEN_MODE } = ssh2.utils.sftp;
const HANDLES_MAX = 256;
const ENTRIES_AT_ONCE = 100;

interface Opened {
  readonly path: string;
  readonly download?: Download;
  readonly upload?: Upload;
  readonly entries?: AsyncIterator<SandboxFile>;
  /** Attributes that an uploaded file gets once it is there. */
  later?: Partial<Attributes>;
}

/** Answers the requests of an SFTP client through the files API of a sandbox. */
export class SftpRequests {
  readonly #files: SandboxFiles;
  readonly #paths: SandboxPaths;
  readonly #opened = new Map<string, Opened>();
  #handles = 0;

  constructor(sandbox: Sandbox) {
    this.#files = sandbox.files;
    this.#paths = new SandboxPaths(sandbox);
  }

  /** @returns a handle */
  async open(given: string, flags: number, attributes: Partial<Attributes>): Promise<Buffer> {
    const path = await this.#paths.absolute(given);
    const found = await this.#find(path);
    if (found !== undefined && found.type !== 'file') throw new Refused(`${path} is not a file`);
    if ((flags & OPEN_MODE.WRITE) === 0) {
      if (found === undefined) throw missing(path);
      return this.#keep({ path, download: new Download(this.#files, path, found) });
    }
    const isNew = found === undefined;
    if (isNew && (flags & OPEN_MODE.CREAT) === 0) throw missing(path);
    const ifAbsent = (flags & OPEN_MODE.EXCL) !== 0;
    if (!isNew && ifAbsent) throw new Refused(`${path} is there already`);
    // Checked now: a client that has sent everything is not told a reason any more.
    if (isNew) await this.#requireDirectory(posix.dirname(path));
    const upload = new Upload(this.#files, path, {
      kept: isNew || (flags & OPEN_MODE.TRUNC) !== 0 ? 0 : found.size,
      appends: (flags & OPEN_MODE.APPEND) !== 0,
      write: { ...(isNew ? modeOfNew(attributes) : {}), ...(ifAbsent ? { ifAbsent } : {}) },
    });
    return this.#keep({ path, upload });
  }

  async openDirectory(given: string): Promise<Buffer> {
    const path = await this.#paths.absolute(given);
    await this.#requireDirectory(path);
    return this.#keep({ path, entries: this.#files.list(path)[Symbol.asyncIterator]() });
  }

  /** @returns undefined past the end of the file */
  async read(handle: Buffer, offset: number, length: number): Promise<Buffer | undefined> {
    const { path, download } = this.#get(handle);
    if (download === undefined) throw new Refused(`${path} is not open for reading`);
    return download.read(offset, length);
  }

  async write(handle: Buffer, offset: number, bytes: Buffer): Promise<void> {
    const { path, upload } = this.#get(handle);
    if (upload === undefined) throw new Refused(`${path} is not open for writing`);
    await upload.write(offset, bytes);
  }

  /** Some entries of a directory; none after the last one. */
  async entries(handle: Buffer): Promise<FileEntry[]> {
    const { path, entries } = this.#get(handle);
    if (entries === undefined) throw new Refused(`${path} is not open as a directory`);
    const found: FileEntry[] = [];
    while (found.length < ENTRIES_AT_ONCE) {
      const next = await entries.next();
      if (next.done === true) break;
      const filename = posix.basename(next.value.path);
      const attrs = attributesOf(next.value);
      found.push({ filename, longname: longName(next.value, filename), attrs });
    }
    return found;
  }

  async close(handle: Buffer): Promise<void> {
    const { path, download, upload, later } = this.#get(handle);
    this.#opened.delete(handle.toString('hex'));
    await download?.close();
    await upload?.close();
    if (later !== undefined) await this.#paths.change(path, later);
  }

  /** Gives up everything that is open, since the client has gone. */
  async abandon(): Promise<void> {
    const all = [...this.#opened.values()];
    this.#opened.clear();
    await Promise.allSettled(
      all.map(async ({ download, upload }) => {
        await download?.close();
        await upload?.abandon();
      }),
    );
  }

  async stat(given: string, follow: boolean): Promise<Attributes> {
    return attributesOf(await this.#files.stat(await this.#paths.absolute(given), { follow }));
  }

  async statOpened(handle: Buffer): Promise<Attributes> {
    const { path, upload } = this.#get(handle);
    const found = await this.#find(path);
    if (upload === undefined) return this.stat(path, true);
    const now = Math.floor(Date.now() / 1000);
    const isNew = { mode: 0o100_644, uid: 0, gid: 0, atime: now, mtime: now };
    return { ...(found === undefined ? isNew : attributesOf(found)), size: upload.size };
  }

  async change(given: string, attributes: Partial<Attributes>): Promise<void> {
    const path = await this.#paths.absolute(given);
    await this.#files.stat(path);
    await this.#paths.change(path, attributes);
  }

  async changeOpened(handle: Buffer, attributes: Partial<Attributes>): Promise<void> {
    const opened = this.#get(handle);
    if (opened.upload === undefined) return this.#paths.change(opened.path, attributes);
    opened.later = { ...opened.later, ...attributes };
  }

  async remove(given: string, what: 'directory' | 'file'): Promise<void> {
    const path = await this.#paths.absolute(given);
    const { type } = await this.#files.stat(path, { follow: false });
    if ((type === 'directory') !== (what === 'directory')) {
      throw new Refused(`${path} is ${what === 'directory' ? 'not a' : 'a'} directory`);
    }
    await this.#files.remove(path);
  }

  async makeDirectory(given: string, attributes: Partial<Attributes>): Promise<void> {
    const path = await this.#paths.absolute(given);
    await this.#files.makeDirectory(path, modeOfNew(attributes));
  }

  async rename(from: string, to: string): Promise<void> {
    await this.#files.move(await this.#paths.absolute(from), await this.#paths.absolute(to));
  }

  realPath(given: string): Promise<string> {
    return this.#paths.real(given);
  }

  async readLink(given: string): Promise<string> {
    const path = await this.#paths.absolute(given);
    const { target } = await this.#files.stat(path, { follow: false });
    if (target === undefined) throw new Refused(`${path} is not a link`);
    return target;
  }

  async link(target: string, given: string): Promise<void> {
    await this.#paths.link(target, await this.#paths.absolute(given));
  }

  async #find(path: string): Promise<SandboxFile | undefined> {
    try {
      return await this.#files.stat(path);
    } catch (error) {
      if (error instanceof NotFoundError) return undefined;
      throw error;
    }
  }

  async #requireDirectory(path: string): Promise<void> {
    const { type } = await this.#files.stat(path);
    if (type !== 'directory') throw new Refused(`${path} is not a directory`);
  }

  #keep(opened: Opened): Buffer {
    if (this.#opened.size >= HANDLES_MAX) throw new Refused('too many files are open');
    this.#handles += 1;
    const handle = Buffer.alloc(4);
    handle.writeUInt32BE(this.#handles);
    this.#opened.set(handle.toString('hex'), opened);
    return handle;
  }

  #get(handle: Buffer): Opened {
    const opened = this.#opened.get(handle.toString('hex'));
    if (opened === undefined) throw new Refused('there is no such handle');
    return opened;
  }
}
