import type { IncomingMessage, ServerResponse } from 'node:http';
import { admitOrigin, allowPreflight, isPreflight } from '../../shared/http/cross-origin.ts';
import { addressParties } from '../../shared/http/address-key.ts';
import { SAFETY_HEADERS } from '../../shared/http/safety-headers.ts';
import { lingerAfterAnswer } from '../../shared/http/early-answer.ts';
import { renderObjectError } from '../../shared/http/object-error.ts';
import { FairShares } from '../../shared/fair-shares.ts';
import { AppError, toError } from '../../shared/errors.ts';
import type { RequestForwarder } from '../../shared/links/forward-request.ts';
import { clientAddress } from '../../shared/http/client-address.ts';
import type { Logger } from '../../shared/log.ts';
import { type OpenSpan, serveInSpan } from '../../shared/spans.ts';
import type { Histogram } from '../../shared/metrics.ts';
import type { KnownHosts } from './known-hosts.ts';
import { rankHosts } from './placement.ts';

const UNAVAILABLE = renderObjectError(
  'ServiceUnavailable',
  'No host can be reached now. Try again.',
);
const BUSY = renderObjectError('SlowDown', 'Too many requests. Try again later.');
const ROUTE = '/{diskId}/{key}';

/** The host that answers cannot replace these. */
const FIXED_HEADERS: ReadonlySet<string> = new Set(Object.keys(SAFETY_HEADERS));

export interface ObjectProxyOptions {
  readonly hub: KnownHosts;
  readonly forwarder: RequestForwarder;
  /** Requests at the same time. */
  readonly requestsMax: number;
  /** Origins whose pages may read every answer, besides what disks allow. */
  readonly allowedOrigins: readonly string[];
  /** Addresses that any number of clients share. */
  readonly proxies: readonly string[];
  /** Proxies whose `X-Forwarded-For` is believed. */
  readonly trustedProxies: readonly string[];
  readonly durations: Histogram<'method' | 'route' | 'status'>;
  readonly log: Logger;
}

/** Whether a path belongs to the object API rather than to REST (docs/object-api.md). */
export const isObjectPath = (url: string): boolean => /^\/dsk-[0-9a-f]{16}(?:[/?]|$)/u.test(url);

/** Passes the object API on the REST origin to a host; which one does not matter to it. */
export class ObjectProxy {
  readonly #options: ObjectProxyOptions;
  readonly #permits: FairShares;

  constructor(options: ObjectProxyOptions) {
    this.#options = options;
    this.#permits = new FairShares(options.requestsMax);
  }

  /** All places are taken, so transfers that stall keep others out. */
  get isCrowded(): boolean {
    return this.#permits.isCrowded;
  }

  /** Never throws. */
  handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { method = '', headers } = request;
    const attributes = { 'http.request.method': method, 'http.route': ROUTE };
    const span = { name: `${method} ${ROUTE}`, kind: 'server', attributes } as const;
    return serveInSpan(headers['traceparent']?.toString(), span, (open) =>
      this.#answer(request, response, open),
    );
  }

  async #answer(request: IncomingMessage, response: ServerResponse, span: OpenSpan): Promise<void> {
    const { durations, log } = this.#options;
    const begunAt = performance.now();
    const notes: Record<string, unknown> = {};
    const { method = '' } = request;
    try {
      await this.#forward(request, response);
    } catch (thrown) {
      notes['err'] = toError(thrown);
      if (response.headersSent) response.destroy();
      else this.#refuse(request, response, thrown);
    }
    const durationMs = performance.now() - begunAt;
    const status = response.statusCode;
    span.set({ 'http.response.status_code': status });
    if (status >= 500) span.fail(String(status));
    durations.observe({ method, route: ROUTE, status: String(status) }, durationMs / 1000);
    log.info(
      { method, route: ROUTE, status, durationMs: Math.round(durationMs), ...notes },
      'request',
    );
  }

  #refuse(request: IncomingMessage, response: ServerResponse, thrown: unknown): void {
    const isBusy = thrown instanceof AppError && thrown.code === 'rate_limited';
    if (!request.complete) lingerAfterAnswer(request, response);
    response.writeHead(503, { 'content-type': 'application/xml', 'retry-after': '2' });
    response.end(request.method === 'HEAD' ? undefined : isBusy ? BUSY : UNAVAILABLE);
  }

  async #forward(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { hub, forwarder, proxies, trustedProxies, allowedOrigins } = this.#options;
    const isAdmitted = admitOrigin(request, response, allowedOrigins);
    if (isAdmitted && isPreflight(request)) return allowPreflight(request, response);
    const address = clientAddress(request, trustedProxies);
    using permit = this.#permits.take(addressParties(proxies, address));
    if (permit === undefined) throw new AppError('rate_limited', 'too many requests');
    const [host] = rankHosts(hub, []);
    if (host === undefined) throw new AppError('no_capacity', 'no host is available now');
    const origin = { address, hopsLeft: '1' } as const;
    for (const [name, value] of Object.entries(SAFETY_HEADERS)) response.setHeader(name, value);
    const { hostId, internalUrl: baseUrl } = host;
    const target = { hostId, baseUrl, origin, fixedHeaders: FIXED_HEADERS };
    await forwarder.forward(request, response, target);
  }
}
