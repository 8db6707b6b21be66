import type { IncomingMessage, ServerResponse } from 'node:http';
import { isRedisFailure } from '../../../../shared/directory/redis.ts';
import {
  admitOrigin,
  allowPreflight,
  exposeObjectHeaders,
  varyByOrigin,
} from '../../../../shared/http/cross-origin.ts';
import { lingerAfterAnswer } from '../../../../shared/http/early-answer.ts';
import { SAFETY_HEADERS } from '../../../../shared/http/safety-headers.ts';
import { AppError, toError } from '../../../../shared/errors.ts';
import type { ForwardTarget, RequestForwarder } from '../../../../shared/links/forward-request.ts';
import { newRequestId, requestIdPattern } from '../../../../shared/ids.ts';
import { EDGE_LIMITS } from '../../limits.ts';
import { isOutOfResources } from '../../../system/to-app-error.ts';
import { renderError, S3Error } from '../protocol/errors.ts';
import type { S3Reply } from './operation.ts';
import { endWithBody, sendBody } from './send-body.ts';

const acceptableId = new RegExp(requestIdPattern, 'u');

const RETRY_AFTER_SECONDS = 2;

const ofAppError: Partial<Record<AppError['code'], 'NoSuchBucket' | 'SlowDown'>> = {
  not_found: 'NoSuchBucket',
  no_capacity: 'SlowDown',
};

function toS3Error(thrown: unknown): S3Error {
  if (thrown instanceof S3Error) return thrown;
  if (thrown instanceof AppError && thrown.code !== 'internal_server_error') {
    return new S3Error(ofAppError[thrown.code] ?? 'ServiceUnavailable', undefined, {
      cause: thrown,
    });
  }
  if (isRedisFailure(thrown))
    return new S3Error('ServiceUnavailable', undefined, { cause: thrown });
  if (isOutOfResources(thrown)) {
    return new S3Error('ServiceUnavailable', undefined, { cause: toError(thrown) });
  }
  return new S3Error('InternalError', undefined, { cause: toError(thrown) });
}

/** A request and its answer, whichever way it ends. */
export class Exchange {
  readonly request: IncomingMessage;
  /** Additional fields of the request's log event. */
  readonly notes: Record<string, unknown>;
  operation = 'none';
  readonly #response: ServerResponse;
  readonly #requestId: string;
  readonly #ended = new AbortController();
  readonly #progress: NodeJS.Timeout;
  /** The status of the failure that ended the request, which a broken connection never shows. */
  #failedStatus: number | undefined;

  /** @param idleMsMax how long the request may be at work while nothing of its body arrives */
  constructor(
    request: IncomingMessage,
    response: ServerResponse,
    idleMsMax: number = EDGE_LIMITS.objectIdleMsMax,
  ) {
    const given = request.headers['x-request-id']?.toString() ?? '';
    this.request = request;
    this.#response = response;
    this.#requestId = acceptableId.test(given) ? given : newRequestId();
    this.notes = { requestId: this.#requestId };
    response.setHeader('x-amz-request-id', this.#requestId);
    for (const [name, value] of Object.entries(SAFETY_HEADERS)) response.setHeader(name, value);
    this.#progress = this.#endWithoutProgress(idleMsMax);
    response.once('close', () => {
      clearInterval(this.#progress);
      if (response.writableFinished) return; // Nobody is at work for it any more.
      this.#ended.abort(new S3Error('IncompleteBody', 'The connection ended.'));
    });
  }

  /** Aborted when the client is gone or may not wait any longer; work for the answer then ends. */
  get signal(): AbortSignal {
    return this.#ended.signal;
  }

  get status(): number {
    return this.#failedStatus ?? this.#response.statusCode;
  }

  /** Tells a client that waits for it (`Expect: 100-continue`) to send the body. */
  continue(): void {
    const isAwaited = this.request.headers.expect?.toLowerCase() === '100-continue';
    if (isAwaited && !this.#response.headersSent) this.#response.writeContinue();
  }

  /** Lets pages of these origins read the answer. @returns whether the one that asks may */
  admitOrigin(origins: readonly string[]): boolean {
    varyByOrigin(this.#response); // Also where there is no such disk: the answers must look alike.
    return admitOrigin(this.request, this.#response, origins);
  }

  /** Answers the preflight of an origin that was admitted. */
  allowPreflight(): void {
    clearInterval(this.#progress);
    allowPreflight(this.request, this.#response);
  }

  async send({ status, headers = {}, xml, object }: S3Reply): Promise<void> {
    const response = this.#response;
    clearInterval(this.#progress);
    try {
      this.#begin(status, headers);
      if (object === undefined) {
        this.#endWithXml(xml);
        return;
      }
      const { file, parts } = object;
      if ('content' in file) {
        this.notes['bytesSent'] = await endWithBody(file.content, parts, response);
        return;
      }
      await sendBody(file, parts, response, (bytes) => {
        this.notes['bytesSent'] = Number(this.notes['bytesSent'] ?? 0) + bytes;
      });
      response.end();
    } finally {
      if (object !== undefined && 'close' in object.file) await object.file.close();
    }
  }

  async forward(forwarder: RequestForwarder, to: ForwardTarget): Promise<void> {
    this.#response.removeHeader('x-amz-request-id');
    try {
      await forwarder.forward(this.request, this.#response, to);
    } catch (cause) {
      throw new S3Error('ServiceUnavailable', undefined, { cause });
    }
  }

  /** Ends the request, for example because its disk was given up or its time is up. */
  abort(reason: AppError): void {
    this.notes['aborted'] = reason.message;
    this.#ended.abort(reason);
    if (this.#response.headersSent) this.#response.destroy();
    else this.fail(reason);
  }

  /** Answers with an error, or breaks the connection off if the answer has begun. Never throws. */
  fail(thrown: unknown): void {
    const response = this.#response;
    if (this.#failedStatus !== undefined) return; // The first failure is the cause of the others.
    const error = toS3Error(thrown);
    this.#failedStatus = error.status;
    this.notes['code'] = error.code;
    if (error.status >= 500 && error.code !== 'NotImplemented') {
      this.notes['err'] = toError(error.cause ?? error);
    }
    if (response.headersSent || response.destroyed) {
      response.destroy();
      return;
    }
    const [path = ''] = (this.request.url ?? '').split('?');
    this.#begin(error.status, error.headers);
    if (error.status === 503) response.setHeader('retry-after', RETRY_AFTER_SECONDS);
    this.#endWithXml(renderError(error, path, this.#requestId));
  }

  /** A body that arrives, and an answer that was begun, must only keep their rate (StallClock). */
  #endWithoutProgress(idleMsMax: number): NodeJS.Timeout {
    const { request } = this;
    let wasComplete = false;
    let bytesBefore = request.socket.bytesRead;
    return setInterval(() => {
      const { bytesRead } = request.socket;
      const hasArrived = !wasComplete && bytesRead > bytesBefore;
      wasComplete = request.complete;
      bytesBefore = bytesRead;
      if (hasArrived || this.#response.headersSent) return;
      this.abort(new AppError('timeout', 'the request takes too long'));
    }, idleMsMax);
  }

  /** Ends an answer with a document or without content; its length is said to HTTP/1.0, too. */
  #endWithXml(xml: string | undefined): void {
    const response = this.#response;
    const bytes = Buffer.from(xml ?? '');
    if (xml !== undefined) response.setHeader('content-type', 'application/xml');
    const hasLength = response.hasHeader('content-length') || response.statusCode === 204;
    if (!hasLength && response.statusCode !== 304) {
      response.setHeader('content-length', bytes.length);
    }
    response.end(this.request.method === 'HEAD' ? undefined : bytes);
  }

  #begin(status: number, headers: Readonly<Record<string, string>>): void {
    this.#response.statusCode = status;
    for (const [name, value] of Object.entries(headers)) this.#response.setHeader(name, value);
    exposeObjectHeaders(this.#response);
    if (!this.request.complete) lingerAfterAnswer(this.request, this.#response);
  }
}
