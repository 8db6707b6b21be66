import { BerthError, SessionError } from './errors.ts';
import { Connection } from './session/connection.ts';
import type { OutputChunk, ProcessExit, ServerEvent } from './session/frames.ts';
import type { Session, SessionHost, SessionOptions } from './session/session.ts';
import { backoffMs, sleep } from './timing.ts';

/** Input for a process: text is sent as UTF-8. */
export type Input = string | Uint8Array;

/** Options of starting a process. */
export interface StartOptions extends SessionOptions {
  /** Variables on top of those of the sandbox. */
  readonly env?: Readonly<Record<string, string>> | undefined;
  /** An absolute path; the image's working directory by default. */
  readonly cwd?: string | undefined;
  /** `true`: 80 columns and 24 rows. All output of a terminal is `stdout`. Pipes by default. */
  readonly terminal?: boolean | { readonly cols: number; readonly rows: number } | undefined;
  /** The process is killed after so many seconds, 1 to 86,400, not counting those of pauses. */
  readonly timeoutSeconds?: number | undefined;
}

/** Output of a process, as text, and how it ended. */
export interface ProcessResult extends ProcessExit {
  readonly stdout: string;
  readonly stderr: string;
}

const CONTROL_ATTEMPTS = 5;
const encoder = new TextEncoder();

/**
 * A process in a sandbox, and this client's session with it. The session survives whatever happens
 * on the way: a broken network, a restart of control nodes and agents, a pause of the sandbox.
 * Every byte comes once and in order, in both directions.
 *
 * Output is read once, by a loop over the process, by {@link result} or by {@link wait}. While it
 * is not read, the process waits; after 30 s it does not any more, and only the newest output is
 * kept.
 *
 * @example
 * const process = await sandbox.start('make test');
 * for await (const { stream, bytes } of process) write(stream, bytes);
 * const { exitCode } = await process.exit;
 */
export class Process implements AsyncIterable<OutputChunk>, AsyncDisposable {
  readonly #session: Session;
  readonly #host: SessionHost;
  #isRead = false;

  /** @internal */
  constructor(session: Session, host: SessionHost) {
    this.#session = session;
    this.#host = host;
  }

  /** Names it in its sandbox and, after a fork, in the copy. */
  get id(): string {
    return this.#session.processId;
  }

  /** Behind the last byte that was read: the offset for another `attach`. */
  get offset(): number {
    return this.#session.readEnd;
  }

  /**
   * How it ended, once the last byte of its output is here. It waits for whoever reads the output;
   * when nobody does, use {@link wait}.
   * @throws ProcessLostError, OutputLostError, ConnectionError
   */
  get exit(): Promise<ProcessExit> {
    return this.#session.exit;
  }

  /**
   * The process's output, in order.
   * @throws ProcessLostError, OutputLostError, ConnectionError; BerthError `output_taken` the
   *   second time
   */
  async *[Symbol.asyncIterator](): AsyncGenerator<OutputChunk, void, undefined> {
    if (this.#isRead) throw new BerthError('output_taken', 'the output is read already');
    this.#isRead = true;
    for (let chunk; (chunk = await this.#session.read()) !== undefined;) yield chunk;
  }

  /** Reads all output to the end. @throws as {@link exit} */
  async result(): Promise<ProcessResult> {
    const texts = { stdout: '', stderr: '' };
    const decoders = { stdout: new TextDecoder(), stderr: new TextDecoder() };
    for await (const { stream, bytes } of this) {
      texts[stream] += decoders[stream].decode(bytes, { stream: true });
    }
    texts.stdout += decoders.stdout.decode();
    texts.stderr += decoders.stderr.decode();
    return { ...(await this.exit), ...texts };
  }

  /** Waits for its end, and discards what it writes. @throws as {@link exit} */
  async wait(): Promise<ProcessExit> {
    for await (const _chunk of this);
    return this.exit;
  }

  /**
   * Sends input. Resolves as soon as this client has taken it over, which it does while the process
   * has less than 1 MiB to take; {@link flush} waits for the process itself. Input for a process
   * that has ended is discarded.
   * @throws BerthError `input_closed`
   */
  async write(input: Input, { signal }: { readonly signal?: AbortSignal } = {}): Promise<void> {
    const bytes = typeof input === 'string' ? encoder.encode(input) : input;
    await this.#session.input.write(bytes, signal);
  }

  /** Sends all of it, in order; waits while the process does not read. */
  async writeAll(input: Iterable<Input> | AsyncIterable<Input>): Promise<void> {
    for await (const piece of input) await this.write(piece);
  }

  /**
   * The end of input, after everything that was written. For a terminal it does nothing: send
   * Ctrl-D.
   */
  closeInput(): void {
    this.#session.input.close();
  }

  /** Resolves when the process has taken all input, or has ended. */
  flush({ signal }: { readonly signal?: AbortSignal } = {}): Promise<void> {
    return this.#session.input.flush(signal);
  }

  /** Ends the process and its group by SIGKILL. Nothing happens when it has ended. */
  async kill(): Promise<void> {
    await control(this.#host, { type: 'kill', process_id: this.id });
  }

  /** Sets the size of its terminal. @throws SessionError `invalid_request` when it has none */
  async resize(size: { readonly cols: number; readonly rows: number }): Promise<void> {
    await control(this.#host, { type: 'resize', process_id: this.id, ...size });
  }

  /**
   * Leaves it; it runs on, and `sandbox.attach` finds it again. What waits to be read is discarded.
   */
  detach(): void {
    this.#session.leave(new BerthError('detached', 'this session has left the process'));
  }

  /** Kills it, and leaves. */
  async [Symbol.asyncDispose](): Promise<void> {
    try {
      await this.kill();
    } catch (error) {
      // The process is gone already, or out of reach.
      if (!(error instanceof BerthError)) throw error;
    } finally {
      this.detach();
    }
  }
}

/** Asks for one thing on a connection of its own, again when that breaks. @throws SessionError */
async function control(host: SessionHost, message: object): Promise<void> {
  const signal = AbortSignal.timeout(60_000);
  for (let n = 0; ; n += 1) {
    let answer: ServerEvent | undefined;
    const url = await host.url(signal);
    const connection = new Connection(host.open(url), message, {
      event: (event) => {
        answer ??= event;
      },
      output: () => undefined,
    });
    await connection.closed;
    if (answer?.type === 'killed' || answer?.type === 'resized') return;
    const refusal =
      answer?.type === 'error'
        ? new SessionError(answer.error, answer.message)
        : new SessionError('internal_error', 'the session broke before an answer came');
    if (refusal.code !== 'internal_error' || n >= CONTROL_ATTEMPTS) throw refusal;
    await sleep(backoffMs(n, 200, 3_000), signal);
  }
}
