import { once } from 'node:events';
import { createServer, request as sendRequest } from 'node:http';
import type { AddressInfo } from 'node:net';
import { brotliCompressSync, deflateSync, gzipSync } from 'node:zlib';
import test from 'ava';
import { readBodyText } from '../../../control/http/read-body.ts';
import { AppError } from '../../../shared/errors.ts';
import { LIMITS } from '../../../shared/limits.ts';
import { sendRaw } from '../../helpers/raw-http.ts';

/** A server that answers with the body as it was read, or with the code of the failure. */
async function openEcho() {
  const failure = Promise.withResolvers<unknown>();
  const server = createServer((incoming, response) => {
    readBodyText(incoming).then(
      (text) => response.end(`read ${text.length}: ${text.slice(0, 20)}`),
      (error: unknown) => {
        failure.resolve(error);
        response.end(error instanceof AppError ? error.code : 'unknown');
      },
    );
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  return { url: `http://127.0.0.1:${port}`, server, failure: failure.promise };
}

const post = async (url: string, body: Buffer | string, headers: Record<string, string> = {}) => {
  const response = await fetch(url, { method: 'POST', headers, body });
  return response.text();
};

for (const [encoding, encode] of [
  ['gzip', gzipSync],
  ['deflate', deflateSync],
  ['br', brotliCompressSync],
] as const) {
  test(`A body with the content encoding ${encoding} is decoded`, async (t) => {
    const { url, server } = await openEcho();
    t.is(await post(url, encode('Grüße'), { 'content-encoding': encoding }), 'read 5: Grüße');
    server.close();
  });
}

test('A byte order mark is not part of the text', async (t) => {
  const { url, server } = await openEcho();
  t.is(await post(url, '\u{feff}{}'), 'read 2: {}');
  server.close();
});

test('A body ends at its bound also when its length is not known before', async (t) => {
  const { url, server } = await openEcho();
  const piece = 'x'.repeat(LIMITS.requestBodyBytesMax);
  const chunk = `${piece.length.toString(16)}\r\n${piece}\r\n`;
  const head = 'POST / HTTP/1.1\r\nhost: a\r\n';
  const replies = await sendRaw(
    url,
    `${head}transfer-encoding: chunked\r\n\r\n${chunk}${chunk}0\r\n\r\n` +
      `${head}content-length: 2\r\nconnection: close\r\n\r\n{}`,
  );
  t.deepEqual(
    replies.map(({ text }) => text),
    ['body_too_large', 'read 2: {}'],
    'the next request on the connection is read',
  );
  server.close();
});

test('A compressed body that is cut off is refused', async (t) => {
  const { url, server, failure } = await openEcho();
  const outgoing = sendRequest(url, { method: 'POST', headers: { 'content-encoding': 'gzip' } });
  outgoing.on('error', () => undefined);
  outgoing.write(gzipSync('{"name":"a"}').subarray(0, 12));
  await once(server, 'request');
  outgoing.destroy();
  t.is(Reflect.get(Object(await failure), 'code'), 'bad_request');
  server.close();
});
