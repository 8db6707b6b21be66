/* How long a request of the object API may be at work. */
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { setTimeout as sleep } from 'node:timers/promises';
import test from 'ava';
import { Exchange } from '../../../../../agent/edge/s3/http/exchange.ts';
import { answerTo, beginRequest, outcomeOf } from '../../../../helpers/raw-objects.ts';

/** Far longer than a client of these tests is ever still while it sends. */
const IDLE_MS = 1_000;
const BODY_BYTES = 60;

type Work = (exchange: Exchange, response: ServerResponse) => Promise<void>;

/** Serves requests with `work` on a port of its own. */
async function serve(work: Work): Promise<AsyncDisposable & { readonly url: string }> {
  const failures: unknown[] = [];
  const handle = (request: IncomingMessage, response: ServerResponse): void => {
    work(new Exchange(request, response, IDLE_MS), response).catch((error) => failures.push(error));
  };
  const server = createServer(handle).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${port}/dsk-0/file`,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      server.close();
      if (failures.length > 0) throw new AggregateError(failures);
    },
  };
}

const put = (url: string) =>
  beginRequest(url, { method: 'PUT', headers: { 'content-length': String(BODY_BYTES) } });

test('an upload that keeps moving may take longer than work without progress', async (t) => {
  await using server = await serve(async (exchange) => {
    const body = await text(exchange.request);
    await exchange.send({ status: 200, xml: `<Bytes>${body.length}</Bytes>` });
  });
  const begunAt = performance.now();
  const upload = put(server.url);
  const outcome = outcomeOf(upload);
  for (let sent = 0; sent < BODY_BYTES; sent += 1) {
    upload.write('x');
    await sleep((3 * IDLE_MS) / BODY_BYTES);
  }
  t.is((await outcome).status, 200);
  t.true(performance.now() - begunAt > 2 * IDLE_MS);
});

test('an upload that stops ends', async (t) => {
  await using server = await serve(async (exchange) => {
    await once(exchange.signal, 'abort');
  });
  const upload = put(server.url);
  upload.write('x');
  t.deepEqual(await outcomeOf(upload), { status: 503, code: 'ServiceUnavailable' });
});

for (const method of ['GET', 'PUT']) {
  test(`work that goes on and on once the ${method} has arrived ends`, async (t) => {
    await using server = await serve(async (exchange) => {
      await text(exchange.request);
      await once(exchange.signal, 'abort');
    });
    const sent = method === 'GET' ? beginRequest(server.url) : put(server.url);
    sent.end(method === 'GET' ? '' : 'x'.repeat(BODY_BYTES));
    t.deepEqual(await outcomeOf(sent), { status: 503, code: 'ServiceUnavailable' });
  });
}

test('an answer that was begun may take its time', async (t) => {
  await using server = await serve(async (_exchange, response) => {
    response.write('begun, ');
    await sleep(2.5 * IDLE_MS);
    response.end('ended');
  });
  const sent = beginRequest(server.url);
  sent.end();
  t.is(await text(await answerTo(sent)), 'begun, ended');
});
