import { once } from 'node:events';
import { closeSync } from 'node:fs';
import { mkdir, stat } from 'node:fs/promises';
import { createConnection, type Socket } from 'node:net';
import { dirname } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { runInBackground } from '../../../shared/background.ts';
import { errnoOf, toError } from '../../../shared/errors.ts';
import type { Logger } from '../../../shared/log.ts';
import { settledWithin } from '../../../shared/settled-within.ts';
import { hydratePath, native } from '../../native/native.ts';
import { spawnDetached } from '../../system/spawn.ts';
import { started } from '../../system/started.ts';

/** An open of a placeholder, which waits. */
export interface WaitingOpen {
  /** The file, open for reading; using it makes no open wait. */
  readonly fd: number;
  /** Opens the file for writing, likewise; close it before the open goes on. */
  openToWrite(): Promise<number>;
  /** Aborted when the helper was lost; the next helper reports the open again. */
  readonly signal: AbortSignal;
}

interface OpensOptions {
  /** Where the file system is mounted. */
  readonly mount: string;
  /** The helper's socket; it may be there from a former agent. */
  readonly socketPath: string;
  /** cgroup.procs of the group for helpers that outlive agents. */
  readonly group: string;
  /** Fills the file. When it throws, the open fails with EIO. */
  readonly onOpen: (open: WaitingOpen) => Promise<void>;
  readonly log: Logger;
}

const GREETING_MS_MAX = 5_000;
const NO_ANSWER = 'the helper does not answer';
const START_MS_MAX = 5_000;
const PAUSE_MS = 50;
const GONE_MS_MAX = 2_000;
/** The first descriptor number that a child is given besides its standard ones. */
const PASSED_FD = 3;

/** There is no helper of this file system. */
class NoHelperError extends Error {}

/** How the helper introduces itself. */
interface Greeting {
  /** The process that has the descriptors it tells of. */
  readonly pid: number;
  /** The number of the watched file system. */
  readonly device: bigint;
  /** The fanotify group, among its descriptors. */
  readonly group: number;
}

/** A connection to the helper, of which there is at most one at a time. */
class Connection {
  readonly pid: number;
  readonly #socket: Socket;
  readonly #gone = new AbortController();
  /** By the helper's serial of the open. */
  readonly #copies = new Map<number, (copy: number) => void>();
  readonly #filling = new Map<number, Promise<void>>();
  readonly #options: OpensOptions;
  readonly closed: Promise<void>;

  constructor(
    socket: Socket,
    { pid }: Greeting,
    lines: AsyncIterable<string>,
    options: OpensOptions,
  ) {
    this.#socket = socket;
    this.pid = pid;
    this.#options = options;
    this.closed = this.#read(lines);
  }

  close(): void {
    this.#socket.destroy();
  }

  async #read(lines: AsyncIterable<string>): Promise<void> {
    try {
      for await (const line of lines) this.#take(line);
    } catch {
      // The connection broke, which is its end as well.
    }
    this.#gone.abort(new Error('the helper is gone'));
    for (const settle of this.#copies.values()) settle(-1);
    await Promise.all(this.#filling.values());
  }

  #take(line: string): void {
    const [word, ...numbers] = line.split(' ');
    const [serial = 0, fd = -1] = numbers.map(Number);
    if (word === 'write') this.#copies.get(serial)?.(fd);
    if (word !== 'open' || this.#filling.has(serial)) return;
    const filled = this.#answer(serial, fd).finally(() => this.#filling.delete(serial));
    this.#filling.set(serial, filled);
  }

  async #answer(serial: number, theirs: number): Promise<void> {
    let fd: number | undefined;
    let verdict = 'allow';
    try {
      fd = native.takeDescriptor(this.pid, theirs);
      const openToWrite = (): Promise<number> => this.#openToWrite(serial, theirs);
      await this.#options.onOpen({ fd, openToWrite, signal: this.#gone.signal });
    } catch (error) {
      verdict = 'deny';
      this.#options.log.warn({ err: toError(error) }, 'bucket:openDenied');
    } finally {
      if (fd !== undefined) closeSync(fd); // The helper keeps the open file.
    }
    if (!this.#gone.signal.aborted) this.#socket.write(`${verdict} ${serial} ${theirs}\n`);
  }

  async #openToWrite(serial: number, theirs: number): Promise<number> {
    this.#gone.signal.throwIfAborted(); // Nobody would settle it any more.
    const { promise, resolve } = Promise.withResolvers<number>();
    this.#copies.set(serial, resolve);
    this.#socket.write(`write ${serial} ${theirs}\n`);
    const copy = await promise;
    this.#copies.delete(serial);
    if (copy < 0) throw new Error('the helper cannot open the file for writing');
    return native.takeDescriptor(this.pid, copy);
  }
}

/**
 * Fills placeholders of one mounted disk while whoever opens them waits (hydrate.c). Keeps a copy
 * of the fanotify group: when every process of the helper is killed at once, opens wait in the
 * group until there is another helper, where they would otherwise go on and read zeros.
 */
export class PlaceholderOpens {
  readonly #options: OpensOptions;
  #connection: Connection;
  /** A copy of the fanotify group. */
  readonly group: number;
  #isClosed = false;

  private constructor(options: OpensOptions, { connection, group }: Connected) {
    this.#options = options;
    this.#connection = connection;
    this.group = group;
    runInBackground('bucket.watchOpens', () => this.#stay());
  }

  /** From now on, opens of placeholders wait until the file is filled. */
  static async watch(options: OpensOptions): Promise<PlaceholderOpens> {
    try {
      return new PlaceholderOpens(options, await connect(options));
    } catch (error) {
      if (!(error instanceof NoHelperError)) throw error;
      await startHelper(options);
      return new PlaceholderOpens(options, await connect(options));
    }
  }

  /** Call it once the disk is unmounted: the helper then ends by itself. */
  async close(): Promise<void> {
    this.#isClosed = true;
    if (!(await settledWithin(this.#connection.closed, GONE_MS_MAX))) this.#connection.close();
    closeSync(this.group);
  }

  async #stay(): Promise<void> {
    for (;;) {
      await this.#connection.closed;
      if (this.#isClosed) return;
      try {
        const { connection, group } = await connect(this.#options);
        this.#connection = connection;
        closeSync(group); // Another copy of the same group.
      } catch (error) {
        if (this.#isClosed) return;
        await sleep(PAUSE_MS);
        if (error instanceof NoHelperError) await this.#startAgain(error);
      }
    }
  }

  async #startAgain(err: Error): Promise<void> {
    const { log, mount } = this.#options;
    // All of its processes were killed at once. The opens that it was dealing with fail.
    log.error({ mount, err }, 'bucket:helperLost');
    await startHelper(this.#options, this.group).catch((error: unknown) => {
      log.error({ mount, err: toError(error) }, 'bucket:helperNotStarted');
    });
  }
}

/** @param formerGroup the fanotify group of a helper that is gone */
async function startHelper(
  { mount, socketPath, group }: OpensOptions,
  formerGroup?: number,
): Promise<void> {
  await mkdir(dirname(socketPath), { recursive: true, mode: 0o700 });
  await mkdir(dirname(group), { recursive: true });
  const passed = formerGroup === undefined ? [] : [formerGroup];
  const child = await started(
    spawnDetached(hydratePath, [mount, socketPath, group, ...passed.map(() => String(PASSED_FD))], {
      stdio: ['ignore', 'pipe', 'pipe', ...passed],
    }),
  );
  const { stdout, stderr } = child;
  if (stdout === null || stderr === null) throw new Error('the helper has no output');
  let printed = '';
  stderr.on('data', (chunk: Buffer) => (printed += chunk.toString('utf8')));
  const ended = once(child, 'exit');
  ended.catch(() => undefined);
  const timer = setTimeout(() => child.kill('SIGKILL'), START_MS_MAX);
  const isReady = await Promise.race([
    once(stdout, 'data').then(() => true),
    ended.then(() => false),
  ]);
  clearTimeout(timer);
  stdout.destroy();
  stderr.destroy();
  child.unref();
  if (!isReady) throw new Error(`opens cannot be watched: ${printed.trim()}`);
}

interface Connected {
  readonly connection: Connection;
  /** A copy of the fanotify group. */
  readonly group: number;
}

/** @throws Error for any other line */
function readGreeting(line: string): Greeting {
  const [word, pid, device = '', group] = line.split(' ');
  if (word !== 'hello') throw new Error(NO_ANSWER);
  return { pid: Number(pid), device: BigInt(device), group: Number(group) };
}

/**
 * A second helper would leave the opens of the first one waiting, so only {@link NoHelperError}
 * says that there is none: any other failure passes.
 */
async function connect(options: OpensOptions): Promise<Connected> {
  const { mount, socketPath } = options;
  const socket = createConnection(socketPath);
  const lines = createInterface({ input: socket, crlfDelay: Infinity })[Symbol.asyncIterator]();
  try {
    await once(socket, 'connect').catch((error: unknown) => {
      const isAbsent = ['ECONNREFUSED', 'ENOENT'].includes(errnoOf(error) ?? '');
      throw isAbsent ? new NoHelperError('nobody listens') : error;
    });
    socket.on('error', () => undefined); // The end of its lines tells the same.
    const first = lines.next();
    if (!(await settledWithin(first, GREETING_MS_MAX))) throw new Error(NO_ANSWER);
    const greeting = readGreeting(String((await first).value));
    const { dev } = await stat(mount, { bigint: true });
    if (greeting.device !== dev) throw new NoHelperError('it is of another file system');
    const group = native.takeDescriptor(greeting.pid, greeting.group);
    const rest = { [Symbol.asyncIterator]: () => lines };
    return { connection: new Connection(socket, greeting, rest, options), group };
  } catch (error) {
    socket.on('error', () => undefined);
    socket.destroy();
    throw error;
  }
}
