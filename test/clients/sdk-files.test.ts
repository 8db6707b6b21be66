/* Files through the client, against servers that answer as Berth behind a proxy does. */
import { once } from 'node:events';
import { createServer, type RequestListener } from 'node:http';
import type { AddressInfo } from 'node:net';
import { gzipSync } from 'node:zlib';
import test from 'ava';
import { CallTimeoutError, ConnectionError } from '@berth/sdk';
import { describePart, readPart } from '../../clients/mcp/src/read-part.ts';
import { DiskFiles } from '../../clients/sdk/src/files/disk-files.ts';
import { Http } from '../../clients/sdk/src/http.ts';
import { KiB } from '../../shared/units.ts';

const CONTENT = Buffer.from('a line of text\n'.repeat(20 * KiB));
const ETAG = '"0123456789abcdef0123456789abcdef"';

/** A disk whose server is this. */
async function serve(listener: RequestListener): Promise<{ files: DiskFiles } & AsyncDisposable> {
  const server = createServer(listener);
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const baseUrl = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return {
    files: new DiskFiles(new Http({ baseUrl, apiKey: 'key' }), 'dsk-0123456789abcdef'),
    async [Symbol.asyncDispose]() {
      server.close();
      server.closeAllConnections();
      await once(server, 'close');
    },
  };
}

/** Compresses whatever was asked for, as a proxy does that obeys no header. */
const compress =
  (more: Readonly<Record<string, number>> = {}): RequestListener =>
  (_request, response) => {
    const headers = { 'content-encoding': 'gzip', etag: `W/${ETAG}`, ...more };
    response.writeHead(200, headers).end(gzipSync(CONTENT));
  };

test('a file that a proxy compresses is read whole, without its length or with that of the compressed form', async (t) => {
  for (const more of [{}, { 'content-length': gzipSync(CONTENT).length }]) {
    await using served = await serve(compress(more));
    const { files } = served;
    t.true(CONTENT.equals(await files.readBytes('file')));
    t.is(await files.readText('file'), CONTENT.toString());
    await using file = await files.read('file');
    t.deepEqual([file.size, file.length], [undefined, undefined]);
  }
});

test('the ETag of a file is the one that Berth sent, also when a proxy has made it weak', async (t) => {
  await using served = await serve(compress());
  await using file = await served.files.read('file');
  t.is(file.etag, ETAG);
  t.like(await served.files.stat('file'), { etag: ETAG, size: undefined });
});

test('a part of a file that a proxy compresses says whether the file goes on', async (t) => {
  await using served = await serve(compress());
  const readTo = async (length: number) => {
    const { signal } = new AbortController();
    const part = await readPart(served.files, 'file', { offset: 0, length, signal });
    return describePart(part, { offset: 0, encoding: 'text' });
  };
  const most = CONTENT.length - 1;
  t.like(await readTo(most), { next_offset: most, is_end: false, size: undefined });
  t.like(await readTo(CONTENT.length), { next_offset: CONTENT.length, is_end: true });
});

test('files are asked for as they are, so that proxies leave their length', async (t) => {
  const asked: unknown[] = [];
  await using served = await serve(({ headers, method }, response) => {
    asked.push([method, headers['accept-encoding']]);
    response.writeHead(200, { 'content-length': CONTENT.length }).end(CONTENT);
  });
  const { files } = served;
  t.is((await files.readBytes('file')).length, CONTENT.length);
  t.is((await files.stat('file')).size, CONTENT.length);
  t.deepEqual(asked, [
    ['GET', 'identity'],
    ['HEAD', 'identity'],
  ]);
});

test('a download that breaks goes on at the byte where it broke, unless it came compressed', async (t) => {
  let requests = 0;
  await using plain = await serve(({ headers }, response) => {
    requests += 1;
    const from = Number(/^bytes=(\d+)-/u.exec(headers.range ?? '')?.[1] ?? 0);
    const part = CONTENT.subarray(from);
    const range = { 'content-range': `bytes ${from}-${CONTENT.length - 1}/${CONTENT.length}` };
    response.writeHead(from === 0 ? 200 : 206, {
      ...{ etag: ETAG, 'content-length': part.length },
      ...(from === 0 ? {} : range),
    });
    if (from > 0) response.end(part);
    else response.write(part.subarray(0, 100_000), () => response.destroy());
  });
  t.true(CONTENT.equals(await plain.files.readBytes('file')));
  t.is(requests, 2);

  requests = 0;
  const compressed = gzipSync(CONTENT, { level: 0 });
  await using encoded = await serve((_request, response) => {
    requests += 1;
    response.writeHead(200, { 'content-encoding': 'gzip', etag: `W/${ETAG}` });
    response.write(compressed.subarray(0, 100_000), () => response.destroy());
  });
  await t.throwsAsync(encoded.files.readBytes('file'), { instanceOf: ConnectionError });
  t.is(requests, 1);
});

test('the time limit and the signal of a listing cover all of its answer', async (t) => {
  let begun: (() => void) | undefined;
  await using served = await serve((_request, response) => {
    response.writeHead(200).write('<ListBucketResult>', () => begun?.()); // And nothing more.
  });
  const { files } = served;
  const late = files.list('', { timeoutMs: 200 }).toArray();
  await t.throwsAsync(late, { instanceOf: CallTimeoutError });
  const abort = new AbortController();
  begun = () => abort.abort();
  const aborted = files.list('', { signal: abort.signal }).toArray();
  await t.throwsAsync(aborted, { name: 'AbortError' });
});
