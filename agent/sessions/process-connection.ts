import type { WebSocket } from 'ws';
import type { OutputPiece, ProcessClient } from '../sandboxes/processes/attachment.ts';
import type {
  AttachedProcess,
  SandboxProcesses,
} from '../sandboxes/processes/sandbox-processes.ts';
import type { SessionError } from '../sandboxes/processes/session-error.ts';
import type { SessionExit } from '../sandboxes/processes/session-exit.ts';
import { checkCloseStdin, type FirstMessage, toProcessSpec } from './client-message.ts';
import { encodeOutput } from './output-frame.ts';
import { CLOSE_CODES, hangUp, sendError, sendEvent, sendExit } from './session-socket.ts';

type AttachingMessage = Extract<FirstMessage, { type: 'start' | 'attach' }>;

/**
 * A connection that is attached to one process: output to the client, input from it. The process
 * sends no more than the guest's window ahead of what has left this host, so no queue grows here.
 */
export class ProcessConnection implements ProcessClient {
  readonly #socket: WebSocket;
  #process: AttachedProcess | undefined;
  /** Sent, and not all of it taken over by the kernel. */
  #leavingFrames = 0;
  /** When output last left this host, or began to wait to; by `performance.now()`. */
  #movedAt = 0;
  /** All output before this offset has left. */
  #leftEnd = 0;

  constructor(socket: WebSocket) {
    this.#socket = socket;
  }

  /** For how long the client has not taken any of what waits for it, in milliseconds. */
  get stalledMs(): number {
    return this.#leavingFrames === 0 ? 0 : performance.now() - this.#movedAt;
  }

  /** Starts the process or attaches to it. @throws SessionError */
  async open(processes: SandboxProcesses, message: AttachingMessage): Promise<void> {
    const socket = this.#socket;
    const process =
      message.type === 'start'
        ? await processes.start(toProcessSpec(message), this, (id) =>
            sendEvent(socket, { type: 'started', process_id: id }),
          )
        : await processes.attach(message.process_id, message.offset ?? 0, this, () =>
            sendEvent(socket, { type: 'attached', process_id: message.process_id }),
          );
    this.#process = process;
    process.acknowledge(this.#leftEnd);
    // It may have ended, or the client hung up, meanwhile.
    if (socket.readyState !== socket.OPEN) this.close();
  }

  /** A frame after the first one. Settles when the next may be read. @throws SessionError */
  async receive(data: Buffer, isBinary: boolean): Promise<void> {
    if (isBinary) return this.#process?.write(data);
    checkCloseStdin(data);
    await this.#process?.closeInput();
  }

  /** The client is gone. */
  close(): void {
    this.#process?.detach();
    this.#process = undefined;
  }

  output(piece: OutputPiece): void {
    const end = piece.offset + piece.bytes.length;
    if (this.#leavingFrames === 0) this.#movedAt = performance.now();
    this.#leavingFrames += 1;
    this.#socket.send(encodeOutput(piece), () => {
      this.#leavingFrames -= 1;
      this.#movedAt = performance.now();
      this.#leftEnd = end;
      this.#process?.acknowledge(end);
    });
  }

  ended(exit: SessionExit): void {
    sendExit(this.#socket, exit);
    this.close();
  }

  detached(error?: SessionError): void {
    if (error === undefined) hangUp(this.#socket, CLOSE_CODES.leaving, 'the sandbox was paused');
    else sendError(this.#socket, error);
    this.close();
  }
}
