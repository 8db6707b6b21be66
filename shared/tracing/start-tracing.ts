import { context } from '@opentelemetry/api';
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks';
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-http';
import { resourceFromAttributes } from '@opentelemetry/resources';
import {
  AlwaysOnSampler,
  BatchSpanProcessor,
  ParentBasedSampler,
  type Sampler,
  TraceIdRatioBasedSampler,
  TracerProvider,
} from '@opentelemetry/sdk-trace';
import type { Logger } from '../log.ts';
import type { TracingConfig } from '../settings/tracing-settings.ts';
import { setTracer } from '../spans.ts';
import { SpanTracer } from './otel-tracer.ts';
import { WatchedExporter } from './watched-exporter.ts';

/** Spans that wait for the receiver, at most; further ones are dropped. */
const SPANS_WAITING_MAX = 2048;
const SPANS_PER_REQUEST_MAX = 512;
const REQUEST_MS_MAX = 10_000;
const SPAN_LIMITS = { attributeCountLimit: 32, attributeValueLengthLimit: 256 };

/** The process that the spans belong to. */
interface TracedProcess {
  readonly service: string;
  readonly instanceId: string | undefined;
  readonly region: string;
}

function samplerOf({ isParentBased, ratio }: TracingConfig['sampler']): Sampler {
  const root = ratio === undefined ? new AlwaysOnSampler() : new TraceIdRatioBasedSampler(ratio);
  return isParentBased ? new ParentBasedSampler({ root }) : root;
}

/** Traces everything from now on, and sends the spans to the receiver. */
export function startTracing(
  { url, headers, sampler, sendEveryMs, resource }: TracingConfig,
  { service, instanceId, region }: TracedProcess,
  log: Logger,
): void {
  const exporter = new OTLPTraceExporter({
    ...{ url, headers: { ...headers }, timeoutMillis: REQUEST_MS_MAX },
    concurrencyLimit: SPANS_WAITING_MAX / SPANS_PER_REQUEST_MAX,
  });
  const provider = new TracerProvider({
    resource: resourceFromAttributes({
      ...resource,
      'service.name': `berth-${service}`,
      'service.instance.id': instanceId,
      'cloud.region': region,
    }),
    sampler: samplerOf(sampler),
    spanLimits: SPAN_LIMITS,
    spanProcessors: [
      new BatchSpanProcessor({
        exporter: new WatchedExporter(exporter, log),
        maxQueueSize: SPANS_WAITING_MAX,
        maxExportBatchSize: SPANS_PER_REQUEST_MAX,
        scheduledDelayMillis: sendEveryMs,
      }),
    ],
  });
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  setTracer(new SpanTracer(provider));
  log.info({ receiver: new URL(url).origin }, 'trace:opened');
}
