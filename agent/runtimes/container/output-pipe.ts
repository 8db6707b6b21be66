import { closeSync } from 'node:fs';
import { fchownSync } from 'node:fs';
import { Socket } from 'node:net';
import { setImmediate } from 'node:timers/promises';
import { native } from '../../native/native.ts';
import { type OutputSink, OutputTail } from './output-tail.ts';

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

  constructor(bytesMax: number) {
    this.tail = new OutputTail(bytesMax);
    this.#sink = this.tail;
    [this.#readFd, this.writeFd] = native.pipe();
    this.#socket = new Socket({ fd: this.#readFd, readable: true, writable: false });
    this.#socket.on('data', (chunk: Buffer) => this.#sink.write(chunk));
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

  /** Reads what was written so far. Its end need not be reached: runc holds the pipe a while. */
  async drain(): Promise<void> {
    while (!this.#socket.destroyed && native.unreadBytes(this.#readFd) > 0) await setImmediate();
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
}
