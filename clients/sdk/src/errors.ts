import { xmlText } from './xml.ts';
import type { FetchAnswer } from './transport.ts';

/** Everything that this client throws by itself; an aborted call throws the signal's reason. */
export class BerthError extends Error {
  /** A code by which programs tell errors apart: a code of the API, or one of this client. */
  readonly code: string;

  constructor(code: string, message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
    this.code = code;
  }
}

/** An error that the API answered. */
export interface ApiFailure {
  /** Status of the HTTP answer. */
  readonly status: number;
  /** A code of docs/api.md; `unknown` when what answered was not Berth. */
  readonly code: string;
  readonly message: string;
  /** Names the request in the logs of the server. */
  readonly requestId: string | undefined;
  /** After how many milliseconds the call may be repeated, when the server has said so. */
  readonly retryAfterMs: number | undefined;
  /** The whole body: some errors say more than code and message. */
  readonly body: unknown;
}

/** The API refused the call, or failed at it. The subclasses are families of codes. */
export class ApiError extends BerthError implements ApiFailure {
  readonly status: number;
  readonly requestId: string | undefined;
  readonly retryAfterMs: number | undefined;
  readonly body: unknown;

  constructor(failure: ApiFailure) {
    super(failure.code, failure.message);
    this.status = failure.status;
    this.requestId = failure.requestId;
    this.retryAfterMs = failure.retryAfterMs;
    this.body = failure.body;
  }
}

/** 400: a field, parameter or identifier is not valid, or the account is at one of its limits. */
export class BadRequestError extends ApiError {}
/** 401: there is no API key, or it is not valid. */
export class UnauthorizedError extends ApiError {}
/** 403: the account may not do this. */
export class ForbiddenError extends ApiError {}
/** 404, 410: there is no such thing, or it is another account's, or not there any more. */
export class NotFoundError extends ApiError {}
/** 409: the thing is not in a state in which this is possible; the code says why. */
export class ConflictError extends ApiError {}
/** 412, 416: the file is not as the caller expected it. */
export class PreconditionError extends ApiError {}
/** 413: the request has too many bytes. */
export class TooLargeError extends ApiError {}
/** 429: too much at once. Repeated by this client before it is thrown. */
export class RateLimitError extends ApiError {}
/** 500 `outcome_unknown`: it may have been done or not. Look before doing it again. */
export class OutcomeUnknownError extends ApiError {}
/** 503: nothing was done. Repeated by this client before it is thrown. */
export class UnavailableError extends ApiError {}
/** 504: it did not end in the time that it had. */
export class DeadlineError extends ApiError {}
/** Any other 5xx: a fault of the server. */
export class ServerError extends ApiError {}

/** No answer came: the network or the server failed, as often as the call was repeated. */
export class ConnectionError extends BerthError {
  constructor(message: string, options?: ErrorOptions) {
    super('connection_failed', message, options);
  }
}

/** The call took longer than its `timeoutMs`. What it asked for may happen nevertheless. */
export class CallTimeoutError extends BerthError {
  constructor(timeoutMs: number) {
    super('call_timeout', `the call took longer than ${timeoutMs} ms`);
  }
}

/** A process connection was refused; the codes are those of docs/process-connections.md. */
export class SessionError extends BerthError {}

/** The process, or what it wrote, is not there any more: its sandbox was stopped or has ended. */
export class ProcessLostError extends BerthError {
  constructor(message: string, options?: ErrorOptions) {
    super('process_lost', message, options);
  }
}

/**
 * A watch has ended for good; the codes are those of the API, as `not_found` when the directory is
 * gone.
 */
export class WatchEndedError extends BerthError {}

/** Output was written while nobody read it, and more of it than is kept. */
export class OutputLostError extends BerthError {
  /** The first byte that is missing. */
  readonly from: number;
  /** The first byte after the gap. */
  readonly to: number;

  constructor(from: number, to: number) {
    super('output_lost', `bytes ${from} to ${to - 1} of the output were not kept`);
    this.from = from;
    this.to = to;
  }
}

const BY_STATUS: Readonly<Record<number, typeof ApiError>> = {
  400: BadRequestError,
  401: UnauthorizedError,
  403: ForbiddenError,
  404: NotFoundError,
  409: ConflictError,
  410: NotFoundError,
  412: PreconditionError,
  413: TooLargeError,
  416: PreconditionError,
  429: RateLimitError,
  503: UnavailableError,
  504: DeadlineError,
};

const fieldOf = (body: unknown, name: string): string | undefined => {
  const value: unknown = typeof body === 'object' && body !== null ? Reflect.get(body, name) : null;
  return typeof value === 'string' ? value : undefined;
};

const UNAUTHORIZED = 401;

/** Codes for failed HEAD requests, whose answers have no body. */
const CODES_WITHOUT_BODY: Readonly<Record<number, string>> = {
  403: 'AccessDenied',
  404: 'NoSuchKey',
  412: 'PreconditionFailed',
};

/** @internal The body of an answer that tells a failure: JSON, or XML from the object API. */
export async function readFailure(response: FetchAnswer): Promise<unknown> {
  const text = await response.text();
  if (text === '') return { code: CODES_WITHOUT_BODY[response.status] };
  try {
    return JSON.parse(text) as unknown;
  } catch {
    const code = xmlText(text, 'Code');
    return code === undefined ? text : { code, error: xmlText(text, 'Message') };
  }
}

/** @internal The error that an answer tells. */
export function toApiError(response: FetchAnswer, body: unknown): ApiError {
  const { status, headers } = response;
  // A 401 may be plain text; everything else without a code was said by something before Berth.
  const code = fieldOf(body, 'code') ?? (status === UNAUTHORIZED ? 'unauthorized' : 'unknown');
  const text = typeof body === 'string' && body !== '' ? body.slice(0, 200) : undefined;
  const message = fieldOf(body, 'error') ?? text ?? `the server answered ${status}`;
  const retryAfter = headers.get('retry-after');
  const retryAfterS = retryAfter === null ? NaN : Number(retryAfter);
  const failure = {
    status,
    code,
    message,
    body,
    requestId: headers.get('x-request-id') ?? undefined,
    retryAfterMs: Number.isFinite(retryAfterS) ? retryAfterS * 1000 : undefined,
  };
  if (code === 'outcome_unknown') return new OutcomeUnknownError(failure);
  const Known = BY_STATUS[status] ?? (status >= 500 ? ServerError : ApiError);
  return new Known(failure);
}
