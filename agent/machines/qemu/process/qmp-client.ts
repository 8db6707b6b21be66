import { EventEmitter } from 'node:events';
import type { Socket } from 'node:net';
import { toError } from '../../../../shared/errors.ts';
import { MachineFault } from '../../guest-link/guest-errors.ts';
import { connectSocket } from '../../shim/connect-socket.ts';
import { parseJson } from '../../../../shared/json.ts';
import { MiB } from '../../../../shared/units.ts';

const TIMEOUT_MS = 10_000;
/** No answer that is asked for grows with what a machine has: the longest take a few KiB. */
const LINE_BYTES_MAX = MiB;
const WAITING_MAX = 64;
const TEXT_LENGTH_MAX = 1000;

/** The monitor refused a command; the connection stays open. */
export class QmpCommandError extends Error {
  /** `GenericError`, `CommandNotFound` … */
  readonly errorClass: string;

  constructor(command: string, errorClass: string, description: string) {
    super(`${command}: ${description}`);
    this.name = 'QmpCommandError';
    this.errorClass = errorClass;
  }
}

/** The monitor is gone, does not answer in time, or broke the protocol. */
export class QmpUnavailableError extends MachineFault {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'QmpUnavailableError';
  }
}

/** An event of the monitor: `SHUTDOWN`, `GUEST_PANICKED`, `STOP` … */
export interface QmpEvent {
  readonly name: string;
  readonly data: Readonly<Record<string, unknown>>;
}

interface QmpEvents {
  event: [event: QmpEvent];
  /** Emitted once, as the last event; with an error unless `close` was called. */
  closed: [error: Error | undefined];
}

interface Waiting {
  readonly command: string;
  readonly timer: NodeJS.Timeout;
  resolve(value: unknown): void;
  reject(error: Error): void;
}

type Message = Readonly<Record<string, unknown>>;

const isObject = (value: unknown): value is Message =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** Makes a text of the monitor safe for logs and answers. */
const printable = (value: unknown): string =>
  typeof value === 'string'
    ? value.replaceAll(/[^ -~]/gu, '?').slice(0, TEXT_LENGTH_MAX)
    : 'something unreadable';

/**
 * A connection to QEMU's monitor (QMP). A guest may have taken QEMU over, so everything it sends is
 * bounded and checked, and the first violation of the protocol closes the connection. QEMU serves
 * one connection at a time; to reconnect, open another client.
 */
export class QmpClient extends EventEmitter<QmpEvents> {
  readonly #socket: Socket;
  readonly #waiting = new Map<number, Waiting>();
  readonly #greeted = Promise.withResolvers<void>();
  #pieces: Buffer[] = [];
  #pieceBytes = 0;
  #lastId = 0;
  #isGreeted = false;
  #isClosed = false;

  private constructor(socket: Socket) {
    super();
    this.#socket = socket;
    socket.on('data', (chunk: Buffer) => this.#receive(chunk));
    socket.on('error', (error) => this.#end(new QmpUnavailableError(error.message)));
    socket.on('close', () => this.#end(new QmpUnavailableError('the monitor hung up')));
  }

  /**
   * Connects and negotiates capabilities.
   * @param options.listener receives every event from the first one on
   * @throws QmpUnavailableError
   */
  static async open(
    path: string,
    options: { timeoutMs?: number; listener?: (event: QmpEvent) => void } = {},
  ): Promise<QmpClient> {
    const timeoutMs = options.timeoutMs ?? TIMEOUT_MS;
    const client = new QmpClient(connectSocket(path));
    if (options.listener !== undefined) client.on('event', options.listener);
    const late = (): void => client.#end(new QmpUnavailableError('no greeting in time'));
    const timer = setTimeout(late, timeoutMs);
    try {
      await client.#greeted.promise;
      await client.execute('qmp_capabilities', {}, timeoutMs);
      return client;
    } catch (error) {
      client.#end(toError(error));
      throw error;
    } finally {
      clearTimeout(timer);
    }
  }

  get isClosed(): boolean {
    return this.#isClosed;
  }

  /**
   * Runs a command of the monitor.
   * @returns the answer, which the caller has to validate
   * @throws QmpCommandError when QEMU refuses it; QmpUnavailableError when no answer comes in time
   */
  execute(
    command: string,
    args: Readonly<Record<string, unknown>> = {},
    timeoutMs: number = TIMEOUT_MS,
  ): Promise<unknown> {
    if (this.#isClosed) return Promise.reject(new QmpUnavailableError('the monitor is closed'));
    if (this.#waiting.size >= WAITING_MAX) {
      return Promise.reject(new QmpUnavailableError('too many commands for the monitor'));
    }
    this.#lastId += 1;
    const id = this.#lastId;
    return new Promise((resolve, reject) => {
      // Answers come in order, so after a missing one the connection is of no more use.
      const late = (): void => this.#end(new QmpUnavailableError(`${command}: no answer in time`));
      const timer = setTimeout(late, timeoutMs);
      this.#waiting.set(id, { command, timer, resolve, reject });
      this.#socket.write(`${JSON.stringify({ execute: command, arguments: args, id })}\n`);
    });
  }

  close(): void {
    this.#end(undefined);
  }

  #receive(chunk: Buffer): void {
    let rest = chunk;
    for (let end = rest.indexOf(10); end >= 0 && !this.#isClosed; end = rest.indexOf(10)) {
      const line = Buffer.concat([...this.#pieces, rest.subarray(0, end)]);
      this.#pieces = [];
      this.#pieceBytes = 0;
      rest = rest.subarray(end + 1);
      this.#receiveLine(line);
    }
    this.#pieceBytes += rest.length;
    if (rest.length > 0) this.#pieces.push(rest);
    if (this.#pieceBytes > LINE_BYTES_MAX) {
      this.#end(new QmpUnavailableError('the monitor does not end its line'));
    }
  }

  #receiveLine(line: Buffer): void {
    try {
      if (line.length > LINE_BYTES_MAX) throw new Error('line too long');
      const message: unknown = parseJson(line.toString('utf8'));
      if (!isObject(message)) throw new Error('not an object');
      this.#handle(message);
    } catch (cause) {
      this.#end(new QmpUnavailableError('the monitor broke the protocol', { cause }));
    }
  }

  #handle(message: Message): void {
    if (!this.#isGreeted) {
      if (!isObject(message['QMP'])) throw new Error('no greeting');
      this.#isGreeted = true;
      this.#greeted.resolve();
    } else if ('event' in message) {
      const { event: name, data = {} } = message;
      if (typeof name !== 'string' || !isObject(data)) throw new Error('malformed event');
      this.emit('event', { name: printable(name), data });
    } else {
      this.#settle(message);
    }
  }

  #settle({ id, error, ...answer }: Message): void {
    const waiting = typeof id === 'number' ? this.#waiting.get(id) : undefined;
    if (waiting === undefined) throw new Error('answer to no command');
    this.#waiting.delete(Number(id));
    clearTimeout(waiting.timer);
    if (isObject(error)) {
      const { class: errorClass, desc } = error;
      const failure = [printable(errorClass), printable(desc)] as const;
      waiting.reject(new QmpCommandError(waiting.command, ...failure));
    } else {
      waiting.resolve(answer['return']);
    }
  }

  #end(error: Error | undefined): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#pieces = [];
    this.#socket.destroy();
    const reason = error ?? new QmpUnavailableError('the monitor was closed');
    this.#greeted.promise.catch(() => undefined); // The caller of `open` may have stopped waiting.
    this.#greeted.reject(reason);
    for (const waiting of this.#waiting.values()) {
      clearTimeout(waiting.timer);
      waiting.reject(reason);
    }
    this.#waiting.clear();
    this.emit('closed', error);
  }
}
