/*
 * A client of process connections, written from docs/process-connections.md alone: it shares no
 * code with the agent.
 */
import { EventEmitter, once } from 'node:events';
import type { Socket } from 'node:net';
import { WebSocket } from 'ws';
import type { ApiClient } from './api.ts';
import { sandboxPath } from './sandboxes.ts';

export interface ServerEvent {
  readonly type: string;
  readonly process_id?: string;
  readonly status?: string;
  readonly exit_code?: number | null;
  readonly exit_reason?: string | null;
  readonly cursor?: number;
  /** In version 2: where input goes on. */
  readonly end?: number;
  readonly error?: string;
  readonly message?: string;
}

export interface OutputFrame {
  readonly stream: number;
  readonly offset: number;
  readonly bytes: Buffer;
}

const HEAD_BYTES = 9;

/** A URL for one sandbox's processes. */
export async function connectionUrl(api: ApiClient, sandboxId: string): Promise<string> {
  const path = `${sandboxPath(sandboxId)}/connections`;
  return (await api.data<{ url: string }>('POST', path)).url;
}

/** A WebSocket that keeps everything that came over it, in order. */
export class TestConnection extends EventEmitter {
  readonly socket: WebSocket;
  readonly events: ServerEvent[] = [];
  readonly frames: OutputFrame[] = [];
  /** Set when it was closed. */
  closed: { readonly code: number; readonly reason: string } | undefined;
  /** The HTTP status when it was not upgraded. */
  refused: number | undefined;
  /** The TCP connection below, once it is upgraded. */
  rawSocket: Socket | undefined;
  #onFrame: ((frame: OutputFrame) => void) | undefined;

  /** @param origin that of the page that connects, as browsers send it */
  constructor(url: string, origin?: string) {
    super();
    this.setMaxListeners(0);
    this.socket = new WebSocket(url, {
      perMessageDeflate: false,
      ...(origin === undefined ? {} : { origin }),
    });
    this.socket.on('message', (data: Buffer, isBinary) => {
      if (isBinary) this.#receive(data);
      else this.events.push(JSON.parse(data.toString('utf8')) as ServerEvent);
      this.emit('change');
    });
    this.socket.on('upgrade', ({ socket }) => {
      this.rawSocket = socket;
    });
    this.socket.on('open', () => this.emit('change'));
    this.socket.on('error', () => this.emit('change'));
    this.socket.on('unexpected-response', (request, { statusCode }) => {
      this.refused = statusCode;
      request.destroy();
      this.closed = { code: 1006, reason: '' };
      this.emit('change');
    });
    this.socket.on('close', (code, reason) => {
      this.closed = { code, reason: reason.toString() };
      this.emit('change');
    });
  }

  /** Opens a connection and sends its first message. */
  static async open(api: ApiClient, sandboxId: string, first?: object): Promise<TestConnection> {
    const session = new TestConnection(await connectionUrl(api, sandboxId));
    await session.until(() => session.isOpen || session.closed !== undefined);
    if (first !== undefined) session.say(first);
    return session;
  }

  get isOpen(): boolean {
    return this.socket.readyState === WebSocket.OPEN;
  }

  get exit(): ServerEvent | undefined {
    return this.events.find(({ type }) => type === 'exit');
  }

  get error(): string | undefined {
    return this.events.find(({ type }) => type === 'error')?.error;
  }

  get processId(): string {
    return this.events.find(({ type }) => type === 'started')?.process_id ?? '';
  }

  /** Where the output that came ends. */
  get cursor(): number {
    const last = this.frames.at(-1);
    return last === undefined ? 0 : last.offset + last.bytes.length;
  }

  get text(): string {
    return Buffer.concat(this.frames.map(({ bytes }) => bytes)).toString('utf8');
  }

  of(stream: number): string {
    const frames = this.frames.filter((frame) => frame.stream === stream);
    return Buffer.concat(frames.map(({ bytes }) => bytes)).toString('utf8');
  }

  /** From now on frames are passed on instead of kept, those that have come already first. */
  readFrames(onFrame: (frame: OutputFrame) => void): void {
    for (const frame of this.frames.splice(0)) onFrame(frame);
    this.#onFrame = onFrame;
  }

  say(message: object): void {
    this.socket.send(JSON.stringify(message));
  }

  /** Input for the process. */
  write(bytes: string | Buffer): void {
    this.socket.send(Buffer.from(bytes));
  }

  /** Resolves when the condition holds; it is checked after everything that happens. */
  async until(holds: () => boolean): Promise<this> {
    while (!holds()) {
      if (this.closed !== undefined) {
        const said = JSON.stringify({ ...this.closed, events: this.events });
        throw new Error(`the session was closed before: ${said}`);
      }
      await once(this, 'change');
    }
    return this;
  }

  /** Resolves when the server has closed the connection. */
  async end(): Promise<this> {
    while (this.closed === undefined) await once(this, 'change');
    return this;
  }

  /** Goes without a word, as a client whose network fails. */
  drop(): void {
    this.socket.terminate();
  }

  #receive(data: Buffer): void {
    const offset = Number(data.readBigUInt64BE(1));
    const frame = { stream: data.readUInt8(0), offset, bytes: data.subarray(HEAD_BYTES) };
    if (this.#onFrame === undefined) this.frames.push(frame);
    else this.#onFrame(frame);
  }
}

/** Runs a command to its end on a process connection. */
export async function runAttached(
  api: ApiClient,
  sandboxId: string,
  command: string,
  options: object = {},
): Promise<TestConnection> {
  const start = { type: 'start', command, env: {}, ...options };
  return (await TestConnection.open(api, sandboxId, start)).end();
}
