import type { ReadableSpan, SpanExporter } from '@opentelemetry/sdk-trace';
import type { Logger } from '../log.ts';

const LOG_EVERY_MS = 60_000;
/** A receiver may say anything. */
const MESSAGE_LENGTH_MAX = 200;

type ExportResult = Parameters<Parameters<SpanExporter['export']>[1]>[0];

/** An exporter whose failures are logged once in a while, with the number of spans lost since. */
export class WatchedExporter implements SpanExporter {
  readonly #exporter: SpanExporter;
  readonly #log: Logger;
  #lostSpans = 0;
  #loggedAt = -Infinity;

  constructor(exporter: SpanExporter, log: Logger) {
    this.#exporter = exporter;
    this.#log = log;
  }

  export(spans: ReadableSpan[], done: (result: ExportResult) => void): void {
    this.#exporter.export(spans, (result) => {
      if (result.error === undefined) this.#succeeded();
      else this.#failed(result.error, spans.length);
      done(result);
    });
  }

  forceFlush(): Promise<void> {
    return this.#exporter.forceFlush?.() ?? Promise.resolve();
  }

  shutdown(): Promise<void> {
    return this.#exporter.shutdown();
  }

  #succeeded(): void {
    if (this.#loggedAt === -Infinity) return;
    this.#log.info({ lostSpans: this.#lostSpans }, 'trace:exportResumed');
    this.#lostSpans = 0;
    this.#loggedAt = -Infinity;
  }

  #failed({ message }: Error, count: number): void {
    this.#lostSpans += count;
    const now = performance.now();
    if (now - this.#loggedAt < LOG_EVERY_MS) return;
    this.#loggedAt = now;
    const why = message.slice(0, MESSAGE_LENGTH_MAX);
    this.#log.warn({ lostSpans: this.#lostSpans, message: why }, 'trace:exportFailed');
  }
}
