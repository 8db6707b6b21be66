import {
  BerthError,
  ConnectionError,
  NotFoundError,
  OutputLostError,
  ProcessLostError,
  SessionError,
  UnauthorizedError,
  UnavailableError,
} from '../errors.ts';
import { randomId } from '../ids.ts';
import { backoffMs, LinkedSignal, sleep } from '../timing.ts';
import type { Socket } from '../transport.ts';
import { Connection } from './connection.ts';
import { encodeInput, type OutputChunk, type ProcessExit, type ServerEvent } from './frames.ts';
import { Gate } from './gate.ts';
import { InputBuffer } from './input-buffer.ts';
import { OutputQueue } from './output-queue.ts';

/** @internal How a session reaches its sandbox. */
export interface SessionHost {
  /** A URL for one WebSocket. @throws ApiError, ConnectionError */
  url(signal: AbortSignal): Promise<string>;
  /** The sandbox's present status. @throws ApiError, ConnectionError */
  status(signal: AbortSignal): Promise<string>;
  open(url: string): Socket;
}

/** Limits of a session; all have defaults. */
export interface SessionOptions {
  /**
   * How many bytes of output may wait in this client to be read. 64 KiB to 64 MiB; default 1 MiB.
   */
  readonly window?: number | undefined;
  /**
   * For how long the session tries to reach its process again, in milliseconds, before it fails;
   * the time for which the sandbox is paused does not count. Default 10 minutes.
   */
  readonly reconnectMs?: number | undefined;
  /**
   * Ends the session, not the process; reading and writing then reject with the signal's reason.
   */
  readonly signal?: AbortSignal | undefined;
}

const WINDOW_BYTES = 1024 * 1024;
const RECONNECT_MS = 600_000;
const BACKOFF_FIRST_MS = 100;
const BACKOFF_MAX_MS = 3_000;
const PAUSED_POLL_MS = 1_000;

/** Refusals that pass: of what was ours before, or while the host's agent comes and goes. */
const PASSING: ReadonlySet<string> = new Set([
  'internal_error',
  'sandbox_not_running',
  'max_concurrent_execs_reached',
  'no_capacity',
]);
/** A sandbox in one of these has its processes, or will have them again. */
const WITH_PROCESSES: ReadonlySet<string> = new Set(['running', 'pending', 'pausing', 'paused']);
/** The answer to a creation may say `running` before everybody knows. */
const COMING: ReadonlySet<string> = new Set(['pending', 'running']);
const STANDING: ReadonlySet<string> = new Set(['pending', 'pausing', 'paused']);

/**
 * @internal One process and this client's hold on it, over as many connections as it takes: each
 * goes on at the byte where the one before it broke, in both directions.
 */
export class Session {
  readonly processId: string;
  readonly output: OutputQueue;
  readonly input = new InputBuffer();
  readonly #host: SessionHost;
  readonly #window: number;
  readonly #reconnectMs: number;
  readonly #gate = new Gate();
  readonly #clientId = randomId();
  readonly #left: LinkedSignal;
  readonly #signal: AbortSignal;
  readonly #ready = Promise.withResolvers<void>();
  readonly #exit = Promise.withResolvers<ProcessExit>();
  #start: object | undefined;
  /** The first byte of output that has not come. */
  #cursor: number;
  /** Output may begin later than asked for: nobody has read any yet. */
  #mayBeginLater: boolean;
  #readEnd = 0;
  #toldReadEnd = 0;
  #connection: Connection | undefined;
  #isReady = false;
  #isOver = false;
  #refusal: SessionError | undefined;
  #failures = 0;
  #failingSince: number | undefined;

  /** @param start the message that starts the process; undefined to attach to one that runs */
  constructor(
    host: SessionHost,
    process: { readonly id: string; readonly start?: object; readonly offset?: number },
    options: SessionOptions,
  ) {
    this.#host = host;
    this.processId = process.id;
    this.#start = process.start;
    this.#cursor = process.offset ?? 0;
    this.#mayBeginLater = process.start === undefined;
    this.#window = options.window ?? WINDOW_BYTES;
    this.#reconnectMs = options.reconnectMs ?? RECONNECT_MS;
    this.#left = new LinkedSignal(options.signal);
    this.#signal = this.#left.signal;
    this.output = new OutputQueue(this.#gate);
    this.#exit.promise.catch(() => undefined); // Those who wait for it are told.
    this.#ready.promise.catch(() => undefined);
    this.#run()
      .catch((error: unknown) => this.#end(error as Error))
      .finally(() => this.#left.release());
  }

  /** Resolves when the process is known to run. */
  get ready(): Promise<void> {
    return this.#ready.promise;
  }

  /** Resolves after the last byte of output, whether it was read or not. */
  get exit(): Promise<ProcessExit> {
    return this.#exit.promise;
  }

  /** Where another session would go on: the first byte that was not read. */
  get readEnd(): number {
    return this.#readEnd;
  }

  /** Leaves the process, which runs on. */
  leave(reason: Error): void {
    this.#left.abort(reason);
  }

  /** The next piece of output; undefined after the last one. */
  async read(): Promise<OutputChunk | undefined> {
    const chunk = await this.output.next();
    if (chunk === undefined) return undefined;
    this.#readEnd = chunk.offset + chunk.bytes.length;
    if (this.#readEnd - this.#toldReadEnd >= this.#window / 4) {
      this.#toldReadEnd = this.#readEnd;
      this.#connection?.say({ type: 'read', offset: this.#readEnd });
    }
    return chunk;
  }

  async #run(): Promise<void> {
    while (!this.#isOver) {
      // Unread output is bounded over all connections together.
      await this.#gate.until(() => this.output.bytes < this.#window, this.#signal);
      try {
        await this.#connect();
      } catch (error) {
        await this.#endure(error as Error);
        continue;
      }
      if (!this.#isOver) await this.#endure(new ConnectionError('the session broke'));
    }
  }

  /** Runs a single connection, to its end. */
  async #connect(): Promise<void> {
    const url = await this.#host.url(this.#signal);
    const connection = new Connection(this.#host.open(url), this.#firstMessage(), {
      event: (event) => this.#receive(event),
      output: (chunk) => this.#receiveOutput(chunk),
    });
    this.#connection = connection;
    const told = this.input.connect(
      (offset, bytes) => connection.send(encodeInput(offset, bytes)),
      () => connection.say({ type: 'close_stdin' }),
    );
    this.#inputTold = told;
    const leave = (): void => connection.close();
    this.#signal.addEventListener('abort', leave);
    try {
      if (this.#signal.aborted) leave();
      await connection.closed;
    } finally {
      this.#signal.removeEventListener('abort', leave);
      this.#connection = undefined;
      this.input.disconnect();
    }
    this.#signal.throwIfAborted();
    this.#throwRefusal();
  }

  #throwRefusal(): void {
    const refusal = this.#refusal;
    this.#refusal = undefined;
    if (refusal !== undefined) throw refusal;
  }

  #inputTold: (taken: number, end: number) => void = () => undefined;

  #firstMessage(): object {
    const framing = { version: 2, client_id: this.#clientId, window: this.#window };
    const process = { process_id: this.processId };
    this.#toldReadEnd = Math.max(this.#toldReadEnd, this.#cursor);
    return this.#start === undefined
      ? { type: 'attach', ...framing, ...process, offset: this.#cursor }
      : { type: 'start', ...framing, ...process, ...this.#start };
  }

  #receive(event: ServerEvent): void {
    switch (event.type) {
      case 'started':
      case 'attached':
        // From here on it is found again under its id, also when this connection breaks at once.
        this.#start = undefined;
        this.#failures = 0;
        this.#failingSince = undefined;
        this.#isReady = true;
        return this.#ready.resolve();
      case 'input':
        return this.#inputTold(event.offset, event.end);
      case 'error':
        this.#refusal = new SessionError(event.error, event.message);
        return;
      case 'exit':
        return this.#receiveExit(event);
      default: // `alive`, and whatever later versions say.
    }
  }

  #receiveOutput({ stream, offset, bytes }: OutputChunk): void {
    const end = offset + bytes.length;
    if (this.#isOver || end <= this.#cursor) return;
    if (!this.#checkGap(offset)) return;
    const from = Math.max(this.#cursor, offset);
    this.#cursor = end;
    this.#mayBeginLater = false;
    this.output.push({ stream, offset: from, bytes: bytes.subarray(from - offset) });
  }

  #receiveExit({ status, cursor, exit_code, exit_reason }: ServerEvent & { type: 'exit' }): void {
    if (!this.#checkGap(cursor)) return;
    const exit = { status, exitCode: exit_code ?? undefined, reason: exit_reason ?? undefined };
    this.#isOver = true;
    this.input.over();
    this.output.end();
    this.#exit.resolve(exit);
  }

  /** Whether output may go on at this offset; else the session ends. */
  #checkGap(offset: number): boolean {
    if (offset <= this.#cursor || this.#mayBeginLater) return true;
    this.#end(new OutputLostError(this.#cursor, offset));
    this.#connection?.close();
    return false;
  }

  /** Waits before the next connection. @throws the error, when another one would not help */
  async #endure(error: Error): Promise<void> {
    this.#signal.throwIfAborted();
    if (!(error instanceof BerthError) || !this.#mayPass(error)) throw this.#asLoss(error);
    if (isOfState(error) && (await this.#isStandingStill(error))) {
      this.#failingSince = undefined;
      return sleep(PAUSED_POLL_MS, this.#signal);
    }
    this.#failingSince ??= performance.now();
    if (performance.now() - this.#failingSince > this.#reconnectMs) throw error;
    const delayMs = backoffMs(this.#failures, BACKOFF_FIRST_MS, BACKOFF_MAX_MS);
    this.#failures += 1;
    await sleep(delayMs, this.#signal);
  }

  #asLoss(error: Error): Error {
    const isGone = error instanceof NotFoundError || isUnknownProcess(error);
    if (!this.#isReady || !isGone) return error;
    return new ProcessLostError('the sandbox does not have the process any more', { cause: error });
  }

  #mayPass(error: BerthError): boolean {
    if (error instanceof ConnectionError || isOfState(error)) return true;
    // A process that never ran is refused for good, but for what only asks to try again.
    if (error instanceof SessionError) {
      return this.#isReady ? PASSING.has(error.code) : error.code === 'internal_error';
    }
    if (error instanceof NotFoundError || error instanceof UnauthorizedError) return false;
    return this.#isReady || error instanceof UnavailableError;
  }

  /**
   * Whether the sandbox is paused, or on its way from or to a pause. One that only comes up is
   * waited for by a first connection too.
   * @throws ProcessLostError; the error, when there was no connection yet
   */
  async #isStandingStill(error: Error): Promise<boolean> {
    try {
      const status = await this.#host.status(this.#signal);
      if (!this.#isReady && !COMING.has(status)) throw error;
      if (WITH_PROCESSES.has(status)) return STANDING.has(status);
      throw new ProcessLostError(`the sandbox is ${status}, and its processes are gone`);
    } catch (failure) {
      if (failure instanceof ConnectionError) return false;
      throw failure;
    }
  }

  #end(error: Error): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.input.over(error);
    this.output.end(error);
    this.#ready.reject(error);
    this.#exit.reject(error);
  }
}

/** Whether the sandbox, as it is now, has no running processes to attach to. */
const isOfState = ({ code }: BerthError): boolean => code === 'sandbox_not_running';

const isUnknownProcess = (error: Error): boolean =>
  error instanceof SessionError && error.code === 'process_not_found';
