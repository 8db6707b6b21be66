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
  /** The end for the container, which has its own copy once it has started. */
  readonly writeFd: number;
  #sink: OutputSink;
  #isWriteEndOpen = true;
  readonly #readFd: number;
  readonly #socket: Socket;
  /** Chunks that the sink has not accepted yet. */
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

  /** Gives the pipe to this user, who can then reopen it as `/dev/stdout`. */
  giveTo(userId: number): void {
    fchownSync(this.writeFd, userId, userId);
  }

  /** Sends what is written from now on to another sink. */
  redirect(sink: OutputSink): void {
    this.#sink = sink;
  }

  /**
   * Reads everything written so far. Does not wait for the end of the pipe, which runc keeps open for
   * a while.
   * @throws Error when the output could not be stored
   */
  async drain(): Promise<void> {
    while (this.#isBehind) await (this.#pending > 0 ? sleep(1) : setImmediate());
    if (this.#failure !== undefined) throw this.#failure;
  }

  /** Call it once the container has its copy: only then can the pipe reach its end. */
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
