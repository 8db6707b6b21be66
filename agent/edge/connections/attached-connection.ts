import { randomUUID } from 'node:crypto';
import type { WebSocket } from 'ws';
import { EDGE_LIMITS } from '../limits.ts';
import { SANDBOX_LIMITS } from '../../sandboxes/limits.ts';
import { KiB } from '../../../shared/units.ts';
import type { OutputPiece, ProcessClient } from '../../sandboxes/processes/attachment.ts';
import type {
  AttachedProcess,
  SandboxProcesses,
} from '../../sandboxes/processes/sandbox-processes.ts';
import { ProcessError } from '../../sandboxes/processes/process-error.ts';
import type { ProcessExit } from '../../sandboxes/processes/process-exit.ts';
import {
  type AttachingMessage,
  decodeInput,
  parseNextMessage,
  toProcessSpec,
  windowOf,
} from './client-message.ts';
import { InputBacklog, type InputRun } from './input-backlog.ts';
import { encodeOutput } from './output-frame.ts';
import { CLOSE_CODES, hangUp, sendError, sendEvent, sendExit } from './connection-socket.ts';

/** The most that Node reads from a socket at once. */
const CHUNK_BYTES_MAX = 64 * KiB;

/**
 * A client of version 1 is not read while more of its input waits than this: with one more message,
 * and the rest of the chunk that it ends in, it is as much as may wait for a process.
 */
const READ_AHEAD_BYTES =
  SANDBOX_LIMITS.inputWaitingBytesMax - EDGE_LIMITS.clientMessageBytesMax - CHUNK_BYTES_MAX;

/**
 * A connection that is attached to one process: output to the client, input from it. The process
 * sends no more than the guest's window ahead of what has left this host, so no queue grows here.
 * In version 2 it also sends no more than the client's window ahead of what the client has read.
 */
export class AttachedConnection implements ProcessClient {
  readonly #socket: WebSocket;
  readonly #version: 1 | 2;
  readonly #failed: (error: unknown) => void;
  readonly #clientId: string;
  readonly #window: number;
  /** The output before this offset may be sent on: the client has read all but a window of it. */
  #credit = Infinity;
  #process: AttachedProcess | undefined;
  /** Sent, and not all of it taken over by the kernel. */
  #leavingFrames = 0;
  /** When output last left this host, or began to wait to; by `performance.now()`. */
  #movedAt = 0;
  /** All output before this offset has left. */
  #leftEnd = 0;
  /** Input that waits behind the input that is being written. */
  readonly #backlog = new InputBacklog();
  #isWriting = false;
  /** Fails when input is refused; what came after that is dropped. */
  #writing: Promise<void> = Promise.resolve();
  #isInputEnding = false;
  /** How much input has come in version 1, whose frames do not say where they begin. */
  #inputReceived = 0;
  /** How much of that was written. */
  #inputWritten = 0;
  /** The client is yet to be told this; undefined when it has been told. */
  #inputNews: { readonly offset: number; readonly end: number } | undefined;
  #isTelling = false;
  /** The client has been told the last that there is to tell. */
  #isOver = false;

  /** @param failed called when input that was received is refused */
  constructor(socket: WebSocket, message: AttachingMessage, failed: (error: unknown) => void) {
    this.#socket = socket;
    this.#failed = (error) => {
      if (!this.#isOver) failed(error);
    };
    this.#version = message.version === 2 ? 2 : 1;
    this.#clientId = message.client_id ?? randomUUID();
    this.#window = windowOf(message);
    this.#credit = (message.type === 'attach' ? (message.offset ?? 0) : 0) + this.#window;
  }

  /** For how long the client has not taken any of what waits for it, in milliseconds. */
  get stalledMs(): number {
    const isWaiting = this.#leavingFrames > 0 || this.#leftEnd > this.#credit;
    return isWaiting ? performance.now() - this.#movedAt : 0;
  }

  /** Whether so much input of version 1 waits that no more is to be read. */
  get isFull(): boolean {
    return this.#inputReceived - this.#inputWritten > READ_AHEAD_BYTES;
  }

  /** Starts the process or attaches to it. @throws ProcessError */
  async open(processes: SandboxProcesses, message: AttachingMessage): Promise<void> {
    const process =
      message.type === 'start'
        ? await processes.start(toProcessSpec(message), this, (id) => this.#greet('started', id))
        : await processes.attach(message.process_id, message.offset ?? 0, this, () =>
            this.#greet('attached', message.process_id),
          );
    this.#process = process;
    this.#acknowledge();
    this.inputTaken(process.input.taken, process.input.end);
    // The process may have ended, or the sandbox paused, meanwhile.
    if (this.#isOver) this.close();
  }

  /** A frame after the first one. @throws ProcessError */
  receive(data: Buffer, isBinary: boolean): void {
    if (this.#isOver) return;
    if (isBinary) return this.#receiveInput(data);
    const message = parseNextMessage(data, this.#version);
    if (message.type === 'close_stdin') {
      this.#isInputEnding = true;
      this.#writeOn();
      return;
    }
    this.#movedAt = performance.now();
    this.#credit = Math.max(this.#credit, message.offset + this.#window);
    this.#acknowledge();
  }

  /** Tells a client of version 2, which cannot see the server's pings, that it is still heard. */
  showAlive(): void {
    if (this.#version === 2) sendEvent(this.#socket, { type: 'alive' });
  }

  /** The client is gone. The process still gets the input that has come. */
  close(): void {
    const process = this.#process;
    if (process === undefined) return;
    this.#process = undefined;
    process.detach();
    const rest = this.#backlog.take();
    const written = [this.#writing];
    if (rest !== undefined) written.push(this.#write(process, rest));
    const isEnding = this.#isInputEnding;
    Promise.all(written)
      .then(() => (isEnding ? process.closeInput() : undefined))
      .catch(() => undefined); // No end of input after a part that is missing.
  }

  output(piece: OutputPiece): void {
    const end = piece.offset + piece.bytes.length;
    if (this.#leavingFrames === 0) this.#movedAt = performance.now();
    this.#leavingFrames += 1;
    this.#socket.send(encodeOutput(piece), () => {
      this.#leavingFrames -= 1;
      this.#movedAt = performance.now();
      this.#leftEnd = end;
      this.#acknowledge();
    });
  }

  inputTaken(taken: number, end: number): void {
    if (this.#version === 1) return;
    this.#inputNews = { offset: taken, end };
    this.#tellInput();
  }

  ended(exit: ProcessExit): void {
    this.#isOver = true;
    sendExit(this.#socket, exit);
    this.close();
  }

  detached(error?: ProcessError): void {
    this.#isOver = true;
    if (error === undefined) hangUp(this.#socket, CLOSE_CODES.leaving, 'the sandbox was paused');
    else sendError(this.#socket, error);
    this.close();
  }

  #greet(type: 'started' | 'attached', processId: string): void {
    sendEvent(this.#socket, { type, process_id: processId });
  }

  #acknowledge(): void {
    this.#process?.acknowledge(Math.min(this.#leftEnd, this.#credit));
  }

  /** Tells a client that does not read the latest news only, so that none pile up for it. */
  #tellInput(): void {
    const news = this.#inputNews;
    if (this.#isTelling || this.#isOver || news === undefined) return;
    this.#inputNews = undefined;
    this.#isTelling = true;
    sendEvent(this.#socket, { type: 'input', ...news }, () => {
      this.#isTelling = false;
      this.#tellInput();
    });
  }

  #receiveInput(data: Buffer): void {
    const process = this.#process;
    if (process === undefined) return;
    const run = this.#runOf(data);
    const isTooFar =
      run.offset + run.bytes.length - process.input.taken > EDGE_LIMITS.inputWindowBytes;
    if (this.#version === 2 && isTooFar) {
      const message = `at most ${EDGE_LIMITS.inputWindowBytes} bytes of input may wait to be taken`;
      throw new ProcessError('invalid_request', message);
    }
    this.#backlog.append(run);
    if (this.isFull) this.#socket.pause();
    this.#writeOn();
  }

  #runOf(data: Buffer): InputRun {
    if (this.#version === 2) return decodeInput(data);
    const run = { offset: this.#inputReceived, bytes: data };
    this.#inputReceived += data.length;
    return run;
  }

  /**
   * Writes the backlog, unless that is under way. Not awaited: what the client has read is told
   * after its input, and a process that waits for that to be heard would never take the input.
   */
  #writeOn(): void {
    if (this.#isWriting) return;
    this.#writing = this.#writeBacklog();
    this.#writing.catch(this.#failed);
  }

  async #writeBacklog(): Promise<void> {
    this.#isWriting = true;
    try {
      while (this.#process !== undefined) {
        const run = this.#backlog.take();
        if (run !== undefined) await this.#writeNext(this.#process, run);
        else if (this.#isInputEnding) {
          this.#isInputEnding = false;
          await this.#process.closeInput();
        } else return;
      }
    } catch (error) {
      this.#backlog.take();
      this.#isInputEnding = false;
      throw error;
    } finally {
      this.#isWriting = false;
    }
  }

  async #writeNext(process: AttachedProcess, run: InputRun): Promise<void> {
    await this.#write(process, run);
    if (this.#version === 2) return;
    const wasFull = this.isFull;
    this.#inputWritten += run.bytes.length;
    if (wasFull && !this.isFull) this.#socket.resume();
  }

  #write(process: AttachedProcess, { offset, bytes }: InputRun): Promise<void> {
    if (this.#version === 1) return process.write(bytes);
    return process.write(bytes, { offset, clientId: this.#clientId });
  }
}
