import type { WebSocket } from 'ws';
import { AppError, toError } from '../../../shared/errors.ts';
import { EDGE_LIMITS } from '../limits.ts';
import type { Logger } from '../../../shared/log.ts';
import { SerialQueue } from '../../system/queues/serial-queue.ts';
import type { SandboxProcesses } from '../../sandboxes/processes/sandbox-processes.ts';
import { ProcessError } from '../../sandboxes/processes/process-error.ts';
import { type FirstMessage, parseFirstMessage } from './client-message.ts';
import { AttachedConnection } from './attached-connection.ts';
import { CLOSE_CODES, hangUp, sendError, sendEvent, toProcessError } from './connection-socket.ts';

export interface ProcessConnectionOptions {
  readonly sandboxId: string;
  /** When the API key ends with which it was opened, in milliseconds since the epoch. */
  readonly endsAt: number | undefined;
  /** The sandbox's processes, while it runs. @throws AppError `not_found`, `sandbox_not_running` */
  readonly connect: () => Promise<SandboxProcesses>;
  readonly log: Logger;
}

/**
 * A WebSocket of a client, from its first message to its end. That message chooses what it is for:
 * it starts a process, attaches to one, or kills or resizes one. The messages that come while it is
 * handled wait behind it, and no more are read meanwhile. A message that was received is handled,
 * also when its client has begun to close the connection since.
 */
export class ProcessConnection {
  readonly sandboxId: string;
  readonly #socket: WebSocket;
  readonly #options: ProcessConnectionOptions;
  readonly #messages = new SerialQueue();
  readonly #firstDeadline: NodeJS.Timeout;
  #connection: AttachedConnection | undefined;
  #isFirst = true;
  #isAnswering = true;
  #heardAt = performance.now();

  constructor(socket: WebSocket, options: ProcessConnectionOptions) {
    this.#socket = socket;
    this.#options = options;
    this.sandboxId = options.sandboxId;
    this.#firstDeadline = setTimeout(
      () => hangUp(socket, CLOSE_CODES.policy, 'no first message in time'),
      EDGE_LIMITS.firstMessageMs,
    );
    socket.on('message', (data: Buffer, isBinary) => this.#receive(data, isBinary));
    socket.on('pong', () => this.#hear());
    socket.on('ping', () => this.#hear());
    socket.on('error', () => undefined); // `close` follows.
    socket.on('close', () => this.#close());
  }

  /**
   * Ends it with the key that opened it, or when the client has not read, or has not been heard,
   * for too long. Call this regularly.
   */
  dropIfOver(): void {
    if (Date.now() >= (this.#options.endsAt ?? Infinity)) {
      hangUp(this.#socket, CLOSE_CODES.policy, 'the API key has expired');
      return;
    }
    // The unread bytes may hold the answer to our ping.
    if (this.#socket.isPaused) this.#hear();
    const isSilent = performance.now() - this.#heardAt > EDGE_LIMITS.connectionSilenceMsMax;
    const isStalled = (this.#connection?.stalledMs ?? 0) > EDGE_LIMITS.connectionStallMsMax;
    if (!isSilent && !isStalled) return;
    const { log, sandboxId } = this.#options;
    log.info({ sandboxId, isStalled }, 'session:dropped');
    this.#socket.terminate();
  }

  ping(): void {
    if (this.#socket.readyState !== this.#socket.OPEN) return;
    this.#socket.ping();
    this.#connection?.showAlive();
  }

  /** The host leaves; clients attach again. */
  leave(): void {
    hangUp(this.#socket, CLOSE_CODES.leaving, 'the host restarts');
  }

  #hear(): void {
    this.#heardAt = performance.now();
  }

  #receive(data: Buffer, isBinary: boolean): void {
    this.#hear();
    if (this.#socket.readyState !== this.#socket.OPEN) return;
    clearTimeout(this.#firstDeadline);
    // The queue holds no more than came with the first message.
    if (this.#connection !== undefined && this.#messages.length === 0) {
      return this.#receiveNext(data, isBinary);
    }
    this.#socket.pause();
    this.#messages
      .add(() => this.#handle(data, isBinary))
      .catch((error: unknown) => this.#fail(error))
      .finally(() => {
        const mayReadOn = this.#connection?.isFull !== true;
        if (this.#messages.length === 0 && mayReadOn) this.#socket.resume();
      });
  }

  async #handle(data: Buffer, isBinary: boolean): Promise<void> {
    if (!this.#isFirst) return this.#receiveNext(data, isBinary);
    this.#isFirst = false;
    const message = parseFirstMessage(data, isBinary);
    const processes = await this.#processes();
    if (message.type === 'start' || message.type === 'attach') {
      this.#connection = new AttachedConnection(this.#socket, message, (error) =>
        this.#fail(error),
      );
      return this.#connection.open(processes, message);
    }
    await this.#control(processes, message);
  }

  #receiveNext(data: Buffer, isBinary: boolean): void {
    if (!this.#isAnswering) return;
    try {
      this.#connection?.receive(data, isBinary);
    } catch (error) {
      this.#fail(error);
    }
  }

  async #control(
    processes: SandboxProcesses,
    message: Extract<FirstMessage, { type: 'kill' | 'resize' }>,
  ): Promise<void> {
    if (message.type === 'kill') await processes.kill(message.process_id);
    else await processes.resize(message.process_id, message.cols, message.rows);
    sendEvent(this.#socket, { type: message.type === 'kill' ? 'killed' : 'resized' });
    this.#isAnswering = false;
    hangUp(this.#socket, CLOSE_CODES.done);
  }

  async #processes(): Promise<SandboxProcesses> {
    try {
      return await this.#options.connect();
    } catch (error) {
      if (!(error instanceof AppError)) throw error;
      throw new ProcessError('sandbox_not_running', error.message, { cause: error });
    }
  }

  #fail(error: unknown): void {
    const shown = toProcessError(error);
    if (shown.code === 'internal_error') {
      const { log, sandboxId } = this.#options;
      log.error({ sandboxId, err: toError(error) }, 'session:failed');
    }
    this.#isAnswering = false;
    if (this.#socket.readyState === this.#socket.OPEN) sendError(this.#socket, shown);
    this.#connection?.close();
  }

  #close(): void {
    clearTimeout(this.#firstDeadline);
    // Behind the messages that were received before.
    this.#messages
      .add(() => this.#connection?.close())
      .catch((error: unknown) => this.#fail(error));
  }
}
