import type { Socket } from '../transport.ts';
import type { OutputChunk, ServerEvent } from './frames.ts';
import { decodeOutput, parseEvent } from './frames.ts';

const OPEN_MS_MAX = 15_000;
/** The server says `alive` every 30 s. */
const SILENCE_MS_MAX = 75_000;
const GONE = 1000;

/** Events of a connection, while it is open. */
export interface ConnectionHandlers {
  event(event: ServerEvent, connection: Connection): void;
  output(chunk: OutputChunk): void;
}

/** @internal One WebSocket, from its opening to its end. */
export class Connection {
  readonly #socket: Socket;
  readonly #closed = Promise.withResolvers<void>();
  #timer: ReturnType<typeof setTimeout> | undefined;
  #isOver = false;

  /** @param first the message that says what the connection is for */
  constructor(socket: Socket, first: object, handlers: ConnectionHandlers) {
    this.#socket = socket;
    socket.binaryType = 'arraybuffer';
    socket.addEventListener('open', () => {
      this.#hear(SILENCE_MS_MAX);
      this.say(first);
    });
    socket.addEventListener('message', (message) => {
      const data: unknown = message.data;
      if (this.#isOver) return;
      this.#hear(SILENCE_MS_MAX);
      if (typeof data === 'string') handlers.event(parseEvent(data), this);
      else if (data instanceof ArrayBuffer) handlers.output(decodeOutput(data));
    });
    socket.addEventListener('error', () => this.close());
    socket.addEventListener('close', () => this.close());
    this.#hear(OPEN_MS_MAX);
  }

  /** Resolves when nothing more comes over it, for whatever reason. */
  get closed(): Promise<void> {
    return this.#closed.promise;
  }

  say(message: object): void {
    this.send(JSON.stringify(message));
  }

  /** A message sent on a connection that has just broken is lost; the next one makes up for it. */
  send(data: string | Uint8Array<ArrayBuffer>): void {
    if (!this.#isOver && this.#socket.readyState === this.#socket.OPEN) this.#socket.send(data);
  }

  /** Waits for no answer: a peer that is gone gives none. */
  close(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    clearTimeout(this.#timer);
    this.#socket.close(GONE);
    this.#closed.resolve();
  }

  #hear(silenceMs: number): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.close(), silenceMs);
  }
}
