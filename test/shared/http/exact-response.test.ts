/* The bytes of header values, whichever way a server writes its answer. */
import { once } from 'node:events';
import { createServer } from 'node:http';
import { type AddressInfo, connect } from 'node:net';
import { buffer } from 'node:stream/consumers';
import test from 'ava';
import { ExactResponse } from '../../../shared/http/exact-response.ts';
import { ALLOWED, bytesOf, FORBIDDEN, treacherousTexts } from '../../helpers/header-bytes.ts';

const BODY = 'body';
const LENGTH = String(BODY.length);
const NAMES = ['content-disposition', 'x-own'];

type Way = (response: ExactResponse, value: string) => void;

function set(response: ExactResponse, value: string): void {
  for (const name of NAMES) response.setHeader(name, value);
}
const raw = (value: string): string[] => NAMES.flatMap((name) => [name, value]);

const ways: Record<string, Way> = {
  'set headers, with the length before them': (response, value) => {
    response.setHeader('content-length', LENGTH);
    set(response, value);
    response.end(Buffer.from(BODY));
  },
  'set headers, with the length that the body has': (response, value) => {
    set(response, value);
    response.end(BODY);
  },
  'raw headers, with the length before them': (response, value) => {
    response.writeHead(200, ['Content-Length', LENGTH, ...raw(value)]);
    response.end(BODY);
  },
  'an object of headers': (response, value) => {
    const headers = Object.fromEntries(NAMES.map((name) => [name, value]));
    response.writeHead(200, 'OK', { 'content-length': LENGTH, ...headers });
    response.end(BODY);
  },
  'raw headers beside set ones': (response, value) => {
    response.setHeader('x-own', value);
    response.setHeader('content-length', LENGTH);
    response.writeHead(200, ['Content-Disposition', value]);
    response.end(BODY);
  },
  'a head that is flushed': (response, value) => {
    response.setHeader('content-length', LENGTH);
    set(response, value);
    response.flushHeaders();
    setImmediate(() => response.end(BODY));
  },
  'chunks of text': (response, value) => {
    set(response, value);
    response.write(BODY.slice(0, 2));
    response.end(BODY.slice(2));
  },
};

/** The bytes of the answer to a request. */
async function answered(method: string, way: Way, value: string): Promise<string> {
  const server = createServer({ ServerResponse: ExactResponse }, (_request, response) => {
    try {
      way(response, value);
    } catch {
      response.destroy();
    }
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const socket = connect((server.address() as AddressInfo).port, '127.0.0.1');
  socket.write(`${method} / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n`);
  const bytes = await buffer(socket);
  server.close();
  return bytes.toString('latin1');
}

const VALUES = [ALLOWED, bytesOf('报告 é.txt'), ...treacherousTexts(2_000).map(bytesOf)];

const withLowerName = (line: string): string =>
  line.replace(/^[^:]*/u, (name) => name.toLowerCase());

for (const [name, way] of Object.entries(ways)) {
  test(`header values leave byte for byte: ${name}`, async (t) => {
    for (const method of ['GET', 'HEAD']) {
      for (const value of VALUES) {
        const text = await answered(method, way, value);
        const end = text.indexOf('\r\n\r\n');
        const lines = text.slice(0, end).split('\r\n').map(withLowerName);
        const others = new Set(['date', 'connection', 'content-length', 'transfer-encoding']);
        const own = lines.slice(1).filter((line) => !others.has(line.split(':')[0] ?? ''));
        t.deepEqual(own.sort(), NAMES.map((each) => `${each}: ${value}`).sort());
        const chunks = lines.includes('transfer-encoding: chunked');
        if (!chunks && method === 'GET') t.true(lines.includes(`content-length: ${LENGTH}`));
        const body = chunks ? '2\r\nbo\r\n2\r\ndy\r\n0\r\n\r\n' : BODY;
        t.is(text.slice(end + 4), method === 'GET' ? body : '');
      }
    }
  });

  test(`control characters of header values are refused: ${name}`, async (t) => {
    for (const byte of FORBIDDEN) t.is(await answered('GET', way, `a${byte}b`), '');
  });
}
