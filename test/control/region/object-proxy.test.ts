/* The object API at the address of control, in front of a host that answers as the test says. */
import { once } from 'node:events';
import { createServer, type RequestListener } from 'node:http';
import type { AddressInfo } from 'node:net';
import test from 'ava';
import { pino } from 'pino';
import type { Host } from '../../../control/region/known-hosts.ts';
import { ObjectProxy } from '../../../control/region/object-proxy.ts';
import type { KnownHosts } from '../../../control/region/known-hosts.ts';
import { RequestForwarder } from '../../../shared/links/forward-request.ts';
import { NO_SANDBOXES } from '../../../shared/links/stream-protocol.ts';
import { Histogram } from '../../../shared/metrics.ts';

const SECRET = 'the-secret-of-the-cluster-of-38-chars-';

async function listen(stack: AsyncDisposableStack, answer: RequestListener): Promise<string> {
  const server = createServer(answer).listen(0, '127.0.0.1');
  await once(server, 'listening');
  stack.defer(() => {
    server.closeAllConnections();
    server.close();
  });
  const { port } = server.address() as AddressInfo;
  return `http://127.0.0.1:${port}`;
}

/** The one host of a node. */
function onlyHost(internalUrl: string): KnownHosts {
  const slots = { execSlots: 1, execsRunning: 0, execsWaiting: 0 };
  const host: Host = {
    ...{ hostId: 'host-0123456789ab', publicUrl: '', internalUrl, jobsPending: 0 },
    load: { ...slots, storageLow: false, draining: false, sandboxes: NO_SANDBOXES },
  };
  return {
    find: (hostId) => (hostId === host.hostId ? host : undefined),
    inRandomOrder: () => [host].values(),
  };
}

/** Starts control's end, and a host behind it whose answers have these headers. */
async function openProxy(hostHeaders: readonly string[]) {
  const stack = new AsyncDisposableStack();
  const internalUrl = await listen(stack, (_request, response) => {
    response.writeHead(200, [...hostHeaders]).end('<script>');
  });
  const forwarder = new RequestForwarder({ clusterSecrets: [SECRET] });
  stack.defer(() => forwarder.close());
  const proxy = new ObjectProxy({
    ...{ hub: onlyHost(internalUrl), forwarder, requestsMax: 10, log: pino({ level: 'silent' }) },
    ...{ allowedOrigins: [], proxies: [], trustedProxies: [] },
    durations: new Histogram({
      ...{ name: 'durations', help: 'x', registers: [] },
      labelNames: ['method', 'route', 'status'] as const,
    }),
  });
  const url = await listen(stack, (request, response) => {
    proxy.handle(request, response).catch(() => response.destroy());
  });
  return { url, [Symbol.asyncDispose]: () => stack.disposeAsync() };
}

test('no answer of a host replaces the headers that keep a page from running', async (t) => {
  await using proxy = await openProxy([
    ...['Content-Type', 'text/html', 'ETag', '"a"', 'x-amz-meta-a', 'b'],
    ...['Content-Security-Policy', 'script-src *', 'content-security-policy', 'script-src a'],
    ...['X-Content-Type-Options', 'sniff'],
  ]);
  const { status, headers } = await fetch(`${proxy.url}/dsk-0123456789abcdef/page.html`);
  t.is(status, 200);
  t.is(headers.get('content-security-policy'), "default-src 'none'; sandbox");
  t.is(headers.get('x-content-type-options'), 'nosniff');
  t.is(headers.get('content-type'), 'text/html');
  t.is(headers.get('x-amz-meta-a'), 'b');
});
