import { closeSync, fchownSync } from 'node:fs';
import { Socket } from 'node:net';
import { setImmediate, setTimeout as sleep } from 'node:timers/promises';
import { toError } from '../../shared/errors.ts';
import { native } from '../native/native.ts';
import { type OutputSink, OutputTail, type TailStorage } from './output-tail.ts';

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
  /** Bytes that were given to the sink, and how many of them it has accepted. */
  #given = 0;
  #accepted = 0;
  /** Bytes beyond so many are not the container's. */
  #end = Infinity;
  #failure: Error | undefined;

  constructor(bytesMax: number, storage: TailStorage) {
    this.tail = new OutputTail(bytesMax, storage);
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
   * Reads everything written so far, and nothing after it: the command may have given the pipe to
   * one that outlives it. Does not wait for the end of the pipe, which runc keeps open for a while.
   * @param isGivenUp tells when nobody wants the rest any more
   * @throws Error when the output could not be stored
   */
  async drain(isGivenUp: () => boolean): Promise<void> {
    this.#end = this.#given + this.#unread;
    while (this.#isBehind && !isGivenUp()) {
      await (this.#pending > 0 ? sleep(1) : setImmediate());
    }
    this.#socket.destroy();
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

  get #unread(): number {
    if (this.#socket.destroyed) return 0;
    return this.#socket.readableLength + native.unreadBytes(this.#readFd);
  }

  get #isBehind(): boolean {
    return this.#accepted < this.#end && (this.#pending > 0 || this.#unread > 0);
  }

  #take(arrived: Buffer): void {
    const chunk = arrived.subarray(0, this.#end - this.#given);
    if (chunk.length === 0) return;
    this.#given += chunk.length;
    const taken = this.#sink.write(chunk);
    if (taken === undefined) {
      this.#accepted += chunk.length;
      return;
    }
    this.#pending += 1;
    this.#socket.pause();
    const settled = (): void => {
      this.#accepted += chunk.length;
      this.#pending -= 1;
      if (this.#pending === 0) this.#socket.resume();
    };
    taken.then(settled, (error: unknown) => {
      this.#failure ??= toError(error);
      settled();
    });
  }
}
