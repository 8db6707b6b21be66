import { createServer } from 'node:net';
import { once } from 'node:events';

const OK = 'HTTP/1.1 200 OK\r\n';
const CHUNKED = `${OK}Transfer-Encoding: chunked\r\n\r\n`;
const GARBAGE = 'garbage \u0000\r\n\r\n';

/** Answers of peers that are hostile or broken, each in the pieces that it arrives in. */
export const GARBAGE_ANSWERS: Readonly<Record<string, readonly string[]>> = {
  'nothing but garbage': [GARBAGE],
  'no version': ['HTTP/9.9 200 OK\r\n\r\n'],
  'garbage within the head': [`${OK}X-A: b\r\n`, GARBAGE],
  'a control character in a header': [`${OK}X-A: b\u0001c\r\nContent-Length: 0\r\n\r\n`],
  'a head without an end': [`${OK}X-A: ${'b'.repeat(100_000)}`],
  'garbage with the head, after an empty body': [`${OK}Content-Length: 0\r\n\r\n${GARBAGE}`],
  'garbage with the head, after a body': [`${OK}Content-Length: 4\r\n\r\nbody${GARBAGE}`],
  'garbage in place of a body that there is not': [`HTTP/1.1 204 No\r\n\r\n${GARBAGE}`],
  'garbage after the head': [`${OK}Content-Length: 4\r\n\r\n`, `body${GARBAGE}`],
  'garbage long after a whole answer': [`${OK}Content-Length: 4\r\n\r\nbody`, GARBAGE],
  'a second answer': [`${OK}Content-Length: 0\r\n\r\n${OK}Content-Length: 0\r\n\r\n`],
  'no chunk, with the head': [`${CHUNKED}${GARBAGE}`],
  'no chunk, after the head': [CHUNKED, GARBAGE],
  'garbage after a chunk': [`${CHUNKED}4\r\nbody\r\n`, GARBAGE],
  'garbage with a chunk': [`${CHUNKED}4\r\nbody${GARBAGE}`],
  'garbage in place of trailers': [`${CHUNKED}4\r\nbody\r\n0\r\n${GARBAGE}`],
  'two lengths': [`${OK}Content-Length: 4\r\nContent-Length: 5\r\n\r\nbody`],
  'garbage after an interim answer': [`HTTP/1.1 100 Continue\r\n\r\n${GARBAGE}`],
  'an upgrade that nobody asked for': [
    'HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n',
    GARBAGE,
  ],
  'an end within a body': [`${OK}Content-Length: 100\r\n\r\nbody`],
};

/** How long the pieces of an answer are apart, so that they arrive one by one. */
const APART_MS = 20;

/** Serves this answer on every connection, and ends it then. */
export async function serveGarbage(
  pieces: readonly string[],
  where: { readonly path: string } | { readonly port: number; readonly host: string } = {
    port: 0,
    host: '127.0.0.1',
  },
): Promise<Disposable & { readonly port: number }> {
  const server = createServer((socket) => {
    socket.on('error', () => undefined);
    socket.once('data', () => {
      pieces.forEach((piece, at) => {
        setTimeout(() => socket.write(piece, 'latin1'), APART_MS * at);
      });
      setTimeout(() => socket.end(), APART_MS * pieces.length);
    });
    socket.resume();
  });
  server.listen(where);
  await once(server, 'listening');
  const address = server.address();
  return {
    port: typeof address === 'object' && address !== null ? address.port : 0,
    [Symbol.dispose]: () => {
      server.close();
    },
  };
}
