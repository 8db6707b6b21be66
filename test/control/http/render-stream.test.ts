/* Bytes passed on to callers: whole, or visibly broken, and never waiting for ever. */
import test from 'ava';
import Koa from 'koa';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Readable } from 'node:stream';
import { renderStream } from '../../../control/http/middleware/render-stream.ts';
import type { RequestState } from '../../../control/http/middleware/request-state.ts';
import { download, open } from '../../helpers/shares.ts';

const IDLE_MS = 100;

interface Place extends AsyncDisposable {
  readonly url: string;
  /** Fields of the log event of the one request, once it is over. */
  readonly notes: Promise<Record<string, unknown>>;
}

/** A server that answers with the stream. */
async function serve(stream: Readable, length: number): Promise<Place> {
  const app = new Koa<RequestState>();
  app.silent = true;
  const over = Promise.withResolvers<Record<string, unknown>>();
  app.use(async (ctx) => {
    ctx.state.notes = {};
    const headers = { 'content-length': String(length) };
    await renderStream(ctx, { status: 200, headers, stream }, IDLE_MS);
    over.resolve(ctx.state.notes);
  });
  const handle = app.callback();
  const server = createServer((request, response) => void handle(request, response));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/`,
    notes: over.promise,
    [Symbol.asyncDispose]: async () => {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}

test('a stream that ends is sent whole', async (t) => {
  await using place = await serve(Readable.from([Buffer.from('ab'), Buffer.from('c')]), 3);
  t.is((await download(place.url)).body.toString(), 'abc');
  t.deepEqual(await place.notes, { bytesSent: 3, completed: true });
});

test('a stream that fails breaks the connection', async (t) => {
  const failing = Readable.from(
    (async function* () {
      yield Buffer.from('ab');
      await Promise.reject(new Error('lost'));
    })(),
  );
  await using place = await serve(failing, 3);
  await t.throwsAsync(download(place.url), { message: 'aborted' });
  t.like(await place.notes, { completed: false });
});

test('a source that stalls is abandoned', async (t) => {
  const stalled = new Readable({ read: () => undefined });
  stalled.push('a');
  await using place = await serve(stalled, 2);
  await t.throwsAsync(download(place.url), { message: 'aborted' });
  t.deepEqual(await place.notes, { bytesSent: 1, completed: false });
  t.true(stalled.destroyed);
});

test('a caller that reads nothing is cut off, and its source ended', async (t) => {
  const endless = new Readable({
    read() {
      this.push(Buffer.alloc(65_536));
    },
  });
  await using place = await serve(endless, Number.MAX_SAFE_INTEGER);
  const answer = await open(place.url);
  answer.on('error', () => undefined);
  t.like(await place.notes, { completed: false });
  t.true(endless.destroyed);
});

test('a caller that hangs up ends the source', async (t) => {
  const waiting = new Readable({ read: () => undefined });
  await using place = await serve(waiting, 1);
  const answer = await open(place.url);
  answer.on('error', () => undefined);
  answer.destroy();
  t.like(await place.notes, { completed: false });
  t.true(waiting.destroyed);
});
