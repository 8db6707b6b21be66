/*
 * Traces. Work that is worth a span says so here, whether or not traces are on: this module loads
 * nothing, and while no tracer is set it only does the work. OpenTelemetry's packages take about
 * 25 MiB and a quarter of a second at the start, so only `OTEL_EXPORTER_OTLP_ENDPOINT` has them
 * loaded. Spans are written by hand: automatic instrumentation patches `http` and `ioredis`, and
 * names spans by what libraries see. The tracer is shared/tracing/otel-tracer.ts.
 */

/**
 * Never a command, a key of an object, or anything else of a caller's that is not an id of ours.
 */
export type SpanAttributes = Readonly<Record<string, string | number | boolean | undefined>>;

/** A span that is about to begin. */
export interface NewSpan {
  /** From a fixed set, such as a route's pattern or a job's kind: never an id. */
  readonly name: string;
  readonly kind?: 'server' | 'producer' | 'consumer';
  readonly attributes?: SpanAttributes;
}

/** The span of work under way. */
export interface OpenSpan {
  rename(name: string): void;
  set(attributes: SpanAttributes): void;
  /** @param reason a code or a class of errors, never a message */
  fail(reason: string): void;
}

export type SpanWork<T> = (span: OpenSpan) => Promise<T>;

/** Whose span a new one is within: `parent` is a W3C traceparent. */
export type SpanOrigin =
  | { readonly from: 'here' }
  | { readonly from: 'caller' | 'cluster'; readonly parent: string | undefined };

/** The ids that join a line of the log to its trace. */
export interface TraceFields {
  readonly trace_id?: string;
  readonly span_id?: string;
}

export interface Tracer {
  run<T>(origin: SpanOrigin, span: NewSpan, work: SpanWork<T>): Promise<T>;
  note(span: NewSpan, beganAt: number): void;
  readonly traceparent: string | undefined;
  readonly fields: TraceFields;
  close(): Promise<void>;
}

const NO_SPAN: OpenSpan = {
  rename: () => undefined,
  set: () => undefined,
  fail: () => undefined,
};
const NO_FIELDS: TraceFields = {};
const HERE: SpanOrigin = { from: 'here' };

let tracer: Tracer | undefined;

/** Switches traces on for the whole process. */
export function setTracer(to: Tracer): void {
  tracer = to;
}

/** Sends the spans that are left; takes seconds at most. */
export const closeTracer = async (): Promise<void> => tracer?.close();

const run = <T>(origin: SpanOrigin, span: NewSpan, work: SpanWork<T>): Promise<T> =>
  tracer === undefined ? work(NO_SPAN) : tracer.run(origin, span, work);

/** Does work in a span within the one under way. Outside any trace, the work has no span. */
export const inSpan = <T>(span: NewSpan, work: SpanWork<T>): Promise<T> => run(HERE, span, work);

/**
 * Does the work of a request from outside in a span.
 * @param traceparent the caller's header of that name; unless it is a valid one, a new trace begins
 */
export const serveInSpan = <T>(
  traceparent: string | undefined,
  span: NewSpan,
  work: SpanWork<T>,
): Promise<T> => run({ from: 'caller', parent: traceparent }, span, work);

/**
 * Does work that another part of the cluster asked for.
 * @param traceparent of the span that asks; undefined: that part traces nothing, and so the work
 *   has no span
 */
export const continueInSpan = <T>(
  traceparent: string | undefined,
  span: NewSpan,
  work: SpanWork<T>,
): Promise<T> => run({ from: 'cluster', parent: traceparent }, span, work);

/**
 * Notes a span that ends now, within the one under way.
 * @param beganAt milliseconds since the epoch
 */
export const noteSpan = (span: NewSpan, beganAt: number): void => tracer?.note(span, beganAt);

/** The W3C traceparent of the span under way, for another part of the cluster. */
export const currentTraceparent = (): string | undefined => tracer?.traceparent;

/** For a line of the log that is written now. */
export const traceFields = (): TraceFields => tracer?.fields ?? NO_FIELDS;
