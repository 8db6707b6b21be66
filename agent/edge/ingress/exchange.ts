import type { IncomingMessage, ServerResponse } from 'node:http';
import { Readable } from 'node:stream';
import type { Dispatcher } from 'undici';
import { awaitsContinue } from '../../../shared/http/continue-requests.ts';
import { lingerAfterAnswer } from '../../../shared/http/early-answer.ts';
import { framingHeaders, framingOf } from '../../../shared/http/http-framing.ts';
import { KiB } from '../../../shared/units.ts';
import { answer, answerOf, ANSWERS, type OwnAnswer } from './answers.ts';
import { DoorError } from './door-error.ts';
import { answerHeaders, reasonOf } from './forward-headers.ts';

export interface Exchange {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  /** Headers of the request, as the guest gets them. */
  readonly headers: readonly string[];
  /** In lower case. */
  readonly zone: string;
  readonly upstream: () => Dispatcher;
  /** Told once when the guest does not begin its answer soon. */
  readonly waits: () => void;
  /** How long the guest may take to begin its answer, or to go on reading. */
  readonly answerMs: number;
}

const REPEATABLE = new Set(['GET', 'HEAD', 'OPTIONS']);
/** A kept connection may have been closed, or its sandbox paused, just when it was taken. */
const STALE = new Set(['UND_ERR_SOCKET', 'UND_ERR_DESTROYED', 'ECONNRESET', 'EPIPE']);

/** After so long, the guest's server may be waiting for another connection to end. */
const WAITS_AFTER_MS = 200;

const codeOf = (error: Error): unknown => Reflect.get(error, 'code');

class SlowGuest extends Error {}

/** The answer to a request that got none from the guest. */
function answerTo(error: Error): OwnAnswer {
  if (error instanceof DoorError) return answerOf(error.fault);
  if (error instanceof SlowGuest) return ANSWERS.slow;
  return ANSWERS.broken;
}

/**
 * Passes a request on to a port of a sandbox and its answer back, both as streams: neither side is
 * read faster than the other one reads. Trailers of the answer pass, those of the request are
 * dropped.
 * @returns what went wrong, once the answer has ended or its connection is broken off
 */
export async function exchange(parts: Exchange): Promise<Error | undefined> {
  const { request, response } = parts;
  const framing = framingOf(request);
  const hasBody = framing !== 'none' && framing !== 0;
  let error = await attempt(parts, hasBody);
  const isStale = error !== undefined && STALE.has(String(codeOf(error)));
  const isRepeatable = !hasBody && REPEATABLE.has(request.method ?? '');
  if (isStale && isRepeatable && !response.headersSent && !response.destroyed) {
    error = await attempt(parts, hasBody);
  }
  if (error === undefined || response.destroyed) return error;
  if (response.headersSent) response.destroy();
  else answer(request, response, answerTo(error));
  return error;
}

function attempt(parts: Exchange, hasBody: boolean): Promise<Error | undefined> {
  const { promise, resolve } = Promise.withResolvers<Error | undefined>();
  const { request, headers, upstream } = parts;
  const handler = new AnswerHandler(parts, hasBody, resolve);
  const framing = framingOf(request);
  upstream().dispatch(
    {
      path: request.url ?? '/',
      method: request.method ?? 'GET',
      headers: hasBody ? [...headers, ...lengthOf(framing)] : (headers as string[]),
      body: hasBody ? Readable.from(bodyOf(request, parts.response), BYTES) : null,
      headersTimeout: 0, // See `#watch`; interim answers would prolong this one.
    },
    handler,
  );
  return promise;
}

const BYTES = { objectMode: false, highWaterMark: 64 * KiB } as const;

/** undici announces chunks by itself. */
const lengthOf = (framing: ReturnType<typeof framingOf>): string[] =>
  framing === 'chunked' ? [] : framingHeaders(framing);

/** The body once the guest wants it. Whatever becomes of it, the caller can still be answered. */
async function* bodyOf(request: IncomingMessage, response: ServerResponse): AsyncGenerator<Buffer> {
  if (awaitsContinue(request)) response.writeContinue();
  for await (const chunk of request.iterator({ destroyOnReturn: false })) yield chunk as Buffer;
}

/** Writes the guest's answer to the caller. */
class AnswerHandler implements Dispatcher.DispatchHandler {
  readonly #parts: Exchange;
  readonly #settle: (error: Error | undefined) => void;
  readonly #hasBody: boolean;
  #controller: Dispatcher.DispatchController | undefined;
  #timer: NodeJS.Timeout | undefined;
  #waiting: NodeJS.Timeout | undefined;

  constructor(parts: Exchange, hasBody: boolean, settle: (error: Error | undefined) => void) {
    this.#parts = parts;
    this.#hasBody = hasBody;
    this.#settle = settle;
  }

  readonly #callerGone = (): void => {
    if (this.#parts.response.writableFinished) return;
    this.#controller?.abort(new Error('the caller hung up'));
  };

  onRequestStart(controller: Dispatcher.DispatchController): void {
    const { response } = this.#parts;
    this.#controller = controller;
    if (response.destroyed) return controller.abort(new Error('the caller hung up'));
    response.on('close', this.#callerGone);
    this.#waiting = setTimeout(this.#parts.waits, WAITS_AFTER_MS);
    this.#watch();
  }

  onBodySent(): void {
    this.#watch();
  }

  onRequestSent(): void {
    if (this.#hasBody && !this.#parts.response.headersSent) this.#watch();
  }

  onResponseStart(
    controller: Dispatcher.DispatchController,
    status: number,
    _headers: unknown,
    message = '',
  ): void {
    if (status < 200) return; // The answer is yet to begin, and in time.
    clearTimeout(this.#timer);
    clearTimeout(this.#waiting);
    const { request, response, zone } = this.#parts;
    const raw = (controller.rawHeaders ?? []) as (Buffer | string)[];
    const texts = raw.map((each) => (typeof each === 'string' ? each : each.toString('latin1')));
    // The answer is here: the rest of the body is not needed.
    if (!request.complete) lingerAfterAnswer(request, response);
    response.writeHead(status, reasonOf(status, message), answerHeaders(texts, zone));
  }

  onResponseData(controller: Dispatcher.DispatchController, chunk: Buffer): void {
    const { response } = this.#parts;
    if (response.write(chunk)) return;
    controller.pause();
    response.once('drain', () => controller.resume());
  }

  onResponseEnd(controller: Dispatcher.DispatchController): void {
    const { response } = this.#parts;
    const raw = (controller.rawTrailers ?? []) as (Buffer | string)[];
    if (raw.length > 0 && response.chunkedEncoding) response.addTrailers(pairsOf(raw));
    response.off('close', this.#callerGone);
    response.end();
    this.#end(undefined);
  }

  onResponseError(_controller: Dispatcher.DispatchController, error: Error): void {
    this.#parts.response.off('close', this.#callerGone);
    this.#end(error);
  }

  /** The guest has so much time for its next step. */
  #watch(): void {
    clearTimeout(this.#timer);
    if (this.#parts.response.headersSent) return;
    const slow = (): void => {
      // While the body waits for the caller, the guest is not to blame.
      const { request } = this.#parts;
      const isCallersTurn = this.#hasBody && !request.complete && request.readableLength === 0;
      if (isCallersTurn) this.#watch();
      else this.#controller?.abort(new SlowGuest('the guest did not answer in time'));
    };
    this.#timer = setTimeout(slow, this.#parts.answerMs);
  }

  #end(error: Error | undefined): void {
    clearTimeout(this.#timer);
    clearTimeout(this.#waiting);
    this.#settle(error);
  }
}

const pairsOf = (raw: readonly (Buffer | string)[]): [string, string][] => {
  const pairs: [string, string][] = [];
  for (let i = 0; i + 1 < raw.length; i += 2) {
    pairs.push([String(raw[i]), raw[i + 1]?.toString('latin1') ?? '']);
  }
  return pairs;
};
