import { closeSync, fchownSync } from 'node:fs';
import { Socket } from 'node:net';
import { setImmediate, setTimeout as sleep } from 'node:timers/promises';
import { toError } from '../../shared/errors.ts';
import { native } from '../native/native.ts';
import { type OutputSink, OutputTail, type TailPlace } from './output-tail.ts';

/**
 * A stream that a container writes to and the agent reads from. A real pipe, not a socket, so that
 * `/dev/stdout` and `/dev/stderr` can be opened inside.
 */
export class OutputPipe {
  readonly tail: OutputTail;
  /** For the container, which has its own copy once it was started. */
  readonly writeFd: number;
  #sink: OutputSink;
  #isWriteEndOpen = true;
  readonly #readFd: number;
  readonly #socket: Socket;
  /** Chunks that the sink has not taken yet. */
  #pending = 0;
  #failure: Error | undefined;

  constructor(bytesMax: number, place: TailPlace) {
    this.tail = new OutputTail(bytesMax, place);
    this.#sink = this.tail;
    [this.#readFd, this.writeFd] = native.pipe();
    this.#socket = new Socket({ fd: this.#readFd, readable: true, writable: false });
    this.#socket.on('data', (chunk: Buffer) => this.#take(chunk));
    this.#socket.on('error', () => this.#socket.destroy());
  }

  /** The user may open it again, by `/dev/stdout`. */
  giveTo(userId: number): void {
    fchownSync(this.writeFd, userId, userId);
  }

  /** What is written from here on goes elsewhere. */
  redirect(sink: OutputSink): void {
    this.#sink = sink;
  }

  /**
   * Reads what was written so far. Its end need not be reached: runc holds the pipe a while.
   * @throws Error when what was read could not be kept
   */
  async drain(): Promise<void> {
    while (this.#isBehind) await (this.#pending > 0 ? sleep(1) : setImmediate());
    if (this.#failure !== undefined) throw this.#failure;
  }

  /** To be called once the container has its copy: only then can the pipe end. */
  closeWriteEnd(): void {
    if (!this.#isWriteEndOpen) return;
    this.#isWriteEndOpen = false;
    closeSync(this.writeFd);
  }

  close(): void {
    this.closeWriteEnd();
    this.#socket.destroy();
  }

  get #isBehind(): boolean {
    if (this.#pending > 0) return true;
    if (this.#socket.destroyed) return false;
    return this.#socket.readableLength > 0 || native.unreadBytes(this.#readFd) > 0;
  }

  #take(chunk: Buffer): void {
    const taken = this.#sink.write(chunk);
    if (taken === undefined) return;
    this.#pending += 1;
    this.#socket.pause();
    const settled = (): void => {
      this.#pending -= 1;
      if (this.#pending === 0) this.#socket.resume();
    };
    taken.then(settled, (error: unknown) => {
      this.#failure ??= toError(error);
      settled();
    });
  }
}
