import {
  type Attributes,
  context,
  type Context,
  ROOT_CONTEXT,
  type Span,
  SpanKind,
  SpanStatusCode,
  trace,
  type Tracer as OtelTracer,
} from '@opentelemetry/api';
import type { TracerProvider } from '@opentelemetry/sdk-trace';
import { AppError, toError } from '../errors.ts';
import { settledWithin } from '../settled-within.ts';
import type {
  NewSpan,
  OpenSpan,
  SpanAttributes,
  SpanOrigin,
  SpanWork,
  TraceFields,
  Tracer,
} from '../spans.ts';

const TRACEPARENT = /^00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})$/u;
const NO_FIELDS: TraceFields = {};
const CLOSE_MS_MAX = 2_000;
const KINDS = {
  server: SpanKind.SERVER,
  producer: SpanKind.PRODUCER,
  consumer: SpanKind.CONSUMER,
} as const;

/** The caller's context, or undefined when it sent no valid one. */
function contextOf(traceparent: string | undefined): Context | undefined {
  const [, traceId, spanId, flags] = TRACEPARENT.exec(traceparent ?? '') ?? [];
  if (traceId === undefined || spanId === undefined) return undefined;
  const traceFlags = Number.parseInt(flags ?? '', 16) & 1;
  return trace.setSpanContext(ROOT_CONTEXT, { traceId, spanId, traceFlags, isRemote: true });
}

const known = (attributes: SpanAttributes): Attributes =>
  Object.fromEntries(Object.entries(attributes).filter(([, value]) => value !== undefined));

/** Spans of OpenTelemetry. Those that are not sampled are not seen by anyone. */
export class SpanTracer implements Tracer {
  readonly #provider: TracerProvider;
  readonly #tracer: OtelTracer;

  constructor(provider: TracerProvider) {
    this.#provider = provider;
    this.#tracer = provider.getTracer('berth');
  }

  async run<T>(origin: SpanOrigin, wanted: NewSpan, work: SpanWork<T>): Promise<T> {
    const within = this.#contextOf(origin);
    if (within === undefined) return work(openSpan(undefined));
    const span = this.#begin(wanted, within);
    const open = openSpan(span);
    try {
      return await context.with(trace.setSpan(within, span), work, undefined, open);
    } catch (error) {
      open.fail(error instanceof AppError ? error.code : toError(error).name);
      throw error;
    } finally {
      span.end();
    }
  }

  note(wanted: NewSpan, beganAt: number): void {
    if (this.#current !== undefined) this.#begin(wanted, context.active(), beganAt).end();
  }

  get traceparent(): string | undefined {
    const span = this.#current?.spanContext();
    return span === undefined ? undefined : `00-${span.traceId}-${span.spanId}-01`;
  }

  get fields(): TraceFields {
    const span = this.#current?.spanContext();
    return span === undefined ? NO_FIELDS : { trace_id: span.traceId, span_id: span.spanId };
  }

  async close(): Promise<void> {
    await settledWithin(this.#provider.shutdown(), CLOSE_MS_MAX);
  }

  /**
   * The span under way. Timers and actors that a request started run on in its context: once its
   * span has ended, what they do is no longer part of its trace.
   */
  get #current(): Span | undefined {
    const span = trace.getActiveSpan();
    return span?.isRecording() === true ? span : undefined;
  }

  /** @returns undefined for work outside any trace */
  #contextOf(origin: SpanOrigin): Context | undefined {
    if (origin.from === 'here') return this.#current && context.active();
    return contextOf(origin.parent) ?? (origin.from === 'caller' ? ROOT_CONTEXT : undefined);
  }

  #begin({ name, kind, attributes = {} }: NewSpan, within: Context, startTime?: number): Span {
    const spanKind = kind === undefined ? SpanKind.INTERNAL : KINDS[kind];
    const options = { kind: spanKind, attributes: known(attributes) };
    // An undefined start time would be taken for the epoch's.
    const began = startTime === undefined ? {} : { startTime };
    return this.#tracer.startSpan(name, { ...options, ...began }, within);
  }
}

const openSpan = (span: Span | undefined): OpenSpan => ({
  rename: (name) => span?.updateName(name),
  set: (attributes) => span?.setAttributes(known(attributes)),
  fail: (reason) => {
    span?.setAttribute('error.type', reason).setStatus({ code: SpanStatusCode.ERROR });
  },
});
