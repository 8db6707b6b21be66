import { type ApiClient, createApiClient } from './api-client.ts';
import {
  ApiError,
  BerthError,
  ConnectionError,
  NotFoundError,
  readFailure,
  toApiError,
} from './errors.ts';
import { randomId } from './ids.ts';
import { backoffMs, Deadline, LinkedSignal, sleep } from './timing.ts';
import { withinTime } from './within-time.ts';
import type { Fetch, FetchAnswer, FetchInit, Socket, SocketClass } from './transport.ts';

/** Options of every call. */
export interface CallOptions {
  /** Ends the call; it then rejects with the signal's reason. */
  readonly signal?: AbortSignal | undefined;
  /** For how long the call may take with all repetitions, in milliseconds. */
  readonly timeoutMs?: number | undefined;
  /** How often it is repeated at most when it failed in a way that may pass. */
  readonly retries?: number | undefined;
}

/** Options of calls that create or run something. */
export interface CreatingCallOptions extends CallOptions {
  /**
   * Repeated within 24 hours with the same key, the call is not carried out again. A random one by
   * default. `false`: none, so the call is not repeated when its answer was lost, and a command
   * ends when its caller hangs up.
   */
  readonly idempotencyKey?: string | false | undefined;
}

/**
 * When a failed call is repeated. `repeatable`: whatever passes, because doing it twice is doing it
 * once. `keyed`: the same, thanks to an Idempotency-Key. `refused`: only when the server says that
 * nothing was begun. `never`: not even then.
 */
export type Retry = 'repeatable' | 'keyed' | 'refused' | 'never';

/** How a call is made; see {@link CallOptions} for what callers choose. */
export interface CallPolicy {
  readonly retry: Retry;
  /** Deletes something: a repetition that finds nothing has succeeded. */
  readonly isDeletion?: boolean;
  /** For how long one attempt may wait for its answer, in milliseconds. May be infinite. */
  readonly attemptMs?: number;
  /** Unless the caller says otherwise. May be infinite. */
  readonly timeoutMs?: number;
}

/** Headers and signal of a single attempt. */
export interface Attempt {
  readonly signal: AbortSignal;
  readonly headers: Record<string, string>;
}

/** A request whose body or answer is content, not JSON. */
export interface ContentRequest {
  readonly method: 'GET' | 'HEAD' | 'PUT' | 'POST' | 'DELETE';
  /** Path and query, percent-encoded. */
  readonly path: string;
  readonly headers?: Readonly<Record<string, string | undefined>>;
  /** Called for each attempt. */
  readonly body?: ((signal: AbortSignal) => Promise<NonNullable<FetchInit['body']>>) | undefined;
}

interface Answer<T> {
  readonly data?: T | undefined;
  readonly error?: unknown;
  readonly response: FetchAnswer;
}

/** Where the API is, who calls it, and what counts for all calls that do not say otherwise. */
export interface BerthOptions {
  /** Where the API is, as in `https://berth.example`. */
  readonly baseUrl: string;
  /** `key-…`. Whoever has it can do everything with the account: keep it out of public pages. */
  readonly apiKey: string;
  /** For how long a call may take with all repetitions, in milliseconds. Default 1 minute. */
  readonly timeoutMs?: number | undefined;
  /** How often a call is repeated at most. Default 5. */
  readonly retries?: number | undefined;
  /** Makes the requests; the runtime's own by default. */
  readonly fetch?: Fetch | undefined;
  /** Opens process connections; the runtime's own by default. */
  readonly WebSocket?: SocketClass | undefined;
}

const TIMEOUT_MS = 60_000;
const ATTEMPT_MS = 30_000; // No call but the execs is held for more than 20 s.
const RETRIES = 5;
const BACKOFF_FIRST_MS = 200;
const BACKOFF_MAX_MS = 5_000;

/** @internal Calls of the API: credentials, deadlines, repetitions, errors. */
export class Http {
  readonly #options: BerthOptions;
  readonly #baseUrl: string;
  readonly #client: ApiClient;

  constructor(options: BerthOptions) {
    this.#options = options;
    this.#baseUrl = options.baseUrl.replace(/\/+$/u, '');
    this.#client = createApiClient(this.#baseUrl, this.#credentials, (url, init) =>
      this.#fetch(url, init),
    );
  }

  get #credentials(): Record<string, string> {
    return { authorization: `Bearer ${this.#options.apiKey}` };
  }

  #fetch(url: string, init: FetchInit): Promise<FetchAnswer> {
    const { fetch = globalThis.fetch } = this.#options;
    return fetch(url, init);
  }

  /**
   * Makes a call until it succeeds or may not be repeated.
   * @returns the body of the answer
   */
  async call<T>(
    policy: CallPolicy,
    options: CreatingCallOptions,
    attempt: (client: ApiClient, init: Attempt) => Promise<Answer<T>>,
  ): Promise<T> {
    const timeoutMs =
      options.timeoutMs ?? policy.timeoutMs ?? this.#options.timeoutMs ?? TIMEOUT_MS;
    const { headers, retry } = this.#keyFor(policy.retry, options.idempotencyKey);
    const retries = options.retries ?? this.#options.retries ?? RETRIES;
    return withinTime(options.signal, timeoutMs, async (ended) => {
      for (let n = 0; ; n += 1) {
        try {
          return await this.#try(policy, ended, (until) =>
            attempt(this.#client, { signal: until, headers }),
          );
        } catch (error) {
          if (ended.aborted) throw error;
          const failure = toFailure(error);
          const isGone = failure instanceof NotFoundError;
          if (n > 0 && isGone && policy.isDeletion === true) return undefined as T;
          if (n >= retries || !mayRepeat(failure, retry)) throw failure;
          const backoff = backoffMs(n, BACKOFF_FIRST_MS, BACKOFF_MAX_MS);
          const asked = failure instanceof ApiError ? (failure.retryAfterMs ?? 0) : 0;
          await sleep(asked + backoff, ended);
        }
      }
    });
  }

  async #try<T>(
    { attemptMs = ATTEMPT_MS }: CallPolicy,
    ended: AbortSignal,
    attempt: (signal: AbortSignal) => Promise<Answer<T>>,
  ): Promise<T> {
    const late = new Deadline(attemptMs);
    const linked = new LinkedSignal(ended, late.signal);
    try {
      return bodyOf(await attempt(linked.signal));
    } finally {
      late.clear();
      linked.release();
    }
  }

  /**
   * Sends or fetches content.
   * @returns the answer as soon as its head is here; from then on it ends by whoever reads it
   */
  content(policy: CallPolicy, options: CallOptions, request: ContentRequest): Promise<FetchAnswer> {
    return this.#exchange(policy, options, request, async (response) => response);
  }

  /** Fetches content that is text. @returns all of it, which the limits of the call cover */
  text(policy: CallPolicy, options: CallOptions, request: ContentRequest): Promise<string> {
    return this.#exchange(policy, options, request, (response) => response.text());
  }

  #exchange<T>(
    policy: CallPolicy,
    options: CallOptions,
    { method, path, headers = {}, body }: ContentRequest,
    read: (response: FetchAnswer) => Promise<T>,
  ): Promise<T> {
    const given = Object.entries(headers).filter(([, value]) => value !== undefined);
    return this.call(policy, options, async (_client, { signal }) => {
      const init: FetchInit = {
        method,
        signal,
        headers: { ...(Object.fromEntries(given) as Record<string, string>), ...this.#credentials },
        ...(body === undefined ? {} : { body: await body(signal), duplex: 'half' }),
      };
      const response = await this.#fetch(this.#baseUrl + path, init);
      if (response.ok) return { data: await read(response), response };
      return { error: await readFailure(response), response };
    });
  }

  openSocket(url: string): Socket {
    const { WebSocket = globalThis.WebSocket } = this.#options;
    return new WebSocket(url);
  }

  #keyFor(
    retry: Retry,
    key: string | false | undefined,
  ): { headers: Record<string, string>; retry: Retry } {
    if (retry !== 'keyed') return { headers: {}, retry };
    if (key === false) return { headers: {}, retry: 'refused' };
    return { headers: { 'idempotency-key': key ?? randomId() }, retry };
  }
}

function bodyOf<T>({ data, error, response }: Answer<T>): T {
  if (response.ok) return data as T;
  throw toApiError(response, error);
}

/**
 * An error of this client's own, which a given `fetch` may throw too, says more than that no answer
 * came.
 */
const toFailure = (error: unknown): Error =>
  error instanceof BerthError
    ? error
    : new ConnectionError('no answer came from the server', { cause: error });

/** Answers of proxies before Berth, which say nothing about what Berth has done. */
const PROXY_STATUSES: ReadonlySet<number> = new Set([502, 503, 504]);

function mayRepeat(failure: Error, retry: Retry): boolean {
  if (retry === 'never') return false;
  if (failure instanceof ConnectionError) return retry !== 'refused';
  if (!(failure instanceof ApiError)) return false;
  if (failure.code === 'unknown') return retry !== 'refused' && PROXY_STATUSES.has(failure.status);
  return failure.status === 429 || (failure.status === 503 && failure.code !== 'not_enabled');
}
