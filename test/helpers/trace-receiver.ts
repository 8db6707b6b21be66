import { once } from 'node:events';
import { createServer, type IncomingHttpHeaders, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';

interface Attribute {
  readonly key: string;
  readonly value: { readonly stringValue?: string; readonly intValue?: number };
}

interface WrittenSpan {
  readonly traceId: string;
  readonly spanId: string;
  readonly parentSpanId?: string;
  readonly name: string;
  readonly startTimeUnixNano: string;
  readonly endTimeUnixNano: string;
  readonly attributes: readonly Attribute[];
  readonly status: { readonly code?: number };
}

interface TraceRequest {
  readonly resourceSpans: readonly {
    readonly resource: { readonly attributes: readonly Attribute[] };
    readonly scopeSpans: readonly { readonly spans: readonly WrittenSpan[] }[];
  }[];
}

export interface ReceivedSpan extends Omit<WrittenSpan, 'attributes'> {
  /** `berth-control` or `berth-agent`. */
  readonly service: string | number | undefined;
  readonly attributes: Readonly<Record<string, string | number | undefined>>;
}

const recordOf = (attributes: readonly Attribute[]): ReceivedSpan['attributes'] =>
  Object.fromEntries(
    attributes.map(({ key, value }) => [key, value.stringValue ?? value.intValue]),
  );

const spansOf = ({ resourceSpans }: TraceRequest): ReceivedSpan[] =>
  resourceSpans.flatMap(({ resource, scopeSpans }) =>
    scopeSpans.flatMap(({ spans }) =>
      spans.map((span) => ({
        ...span,
        service: recordOf(resource.attributes)['service.name'],
        attributes: recordOf(span.attributes),
      })),
    ),
  );

/** A receiver of OTLP over HTTP that keeps what it gets. */
export class TraceReceiver {
  readonly spans: ReceivedSpan[] = [];
  readonly requests: { readonly url: string; readonly headers: IncomingHttpHeaders }[] = [];
  /** Status of its answers; it keeps spans only with 200. */
  status = 200;
  /** All bodies, as they came. */
  text = '';
  readonly #server: Server;

  private constructor() {
    this.#server = createServer((request, response) => {
      const chunks: Buffer[] = [];
      request.on('data', (chunk: Buffer) => chunks.push(chunk));
      request.on('end', () => {
        const text = Buffer.concat(chunks).toString();
        this.text += text;
        const { status } = this;
        if (status === 200) this.spans.push(...spansOf(JSON.parse(text) as TraceRequest));
        this.requests.push({ url: request.url ?? '', headers: request.headers });
        response.writeHead(status, { 'content-type': 'application/json' }).end('{}');
      });
    });
  }

  /** @param port a free one by default */
  static async open(port = 0): Promise<TraceReceiver> {
    const receiver = new TraceReceiver();
    receiver.#server.listen(port, '127.0.0.1');
    await once(receiver.#server, 'listening');
    return receiver;
  }

  get url(): string {
    const { port } = this.#server.address() as AddressInfo;
    return `http://127.0.0.1:${port}`;
  }

  spansOfTrace(traceId: string): ReceivedSpan[] {
    return this.spans.filter((span) => span.traceId === traceId);
  }

  async close(): Promise<void> {
    this.#server.close();
    this.#server.closeAllConnections();
    await once(this.#server, 'close');
  }
}
