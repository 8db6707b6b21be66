import type { Socket } from 'node:net';
import { HANDSHAKE, joinClientHello, serverNameOf, UNREADABLE } from './client-hello.ts';
import { PROXY_LIMITS } from './limits.ts';

/** The protocol of a connection's first bytes, and the host name in them. */
export type ConnectionStart =
  /** A ClientHello, maybe without a name. */
  | { readonly kind: 'tls'; readonly name: string | undefined }
  /** Requests, each with a host of its own. */
  | { readonly kind: 'http' }
  /** Anything else, or nothing: whom it is for cannot be told. */
  | { readonly kind: 'unknown' };

/** Line ends that a server skips before a request line (RFC 9112, 2.2). */
const LINE_ENDS_MAX = 16;
const METHOD_LENGTH_MAX = 20;
/**
 * A method, which is any token (RFC 9110, 9.1), and the byte after it. A server may take methods in
 * lower case, too.
 */
const METHOD = new RegExp(
  String.raw`^[\r\n]{0,${LINE_ENDS_MAX}}([\w!#$%&'*+.^|~\x60-]{0,${METHOD_LENGTH_MAX}})([^]?)`,
  'u',
);
/**
 * Words with a space after them that are not methods: HTTP/2 without TLS names hosts in frames that
 * only an HTTP/2 parser can read, and SSH identifies its client so (RFC 4253, 4.2).
 */
const OTHER_PROTOCOL = /^(?:PRI$|SSH-)/u;

/** First bytes that tell what a connection is: a whole ClientHello, or another protocol. */
type FirstBytes = Buffer | 'http' | 'unknown';

/**
 * Reads as much as tells what a connection is, and puts it back.
 * @param firstByteMs how long the client may say nothing: in some protocols the server speaks first
 * @throws Error when the client closes or is too slow with its ClientHello
 */
export async function readConnectionStart(
  socket: Socket,
  firstByteMs: number,
): Promise<ConnectionStart> {
  const chunks: Buffer[] = [];
  const first = await readFirstBytes(socket, firstByteMs, chunks);
  if (socket.destroyed) throw new Error('the client has closed the connection');
  if (chunks.length > 0) socket.unshift(Buffer.concat(chunks));
  if (typeof first === 'string') return { kind: first };
  const name = await serverNameOf(first);
  return name === UNREADABLE ? { kind: 'unknown' } : { kind: 'tls', name };
}

/**
 * Looks at the bytes only when enough of them have come to tell more: a guest that sends them one
 * by one would have each looked at as often as bytes come.
 * @param chunks gets what was read
 */
async function readFirstBytes(
  socket: Socket,
  firstByteMs: number,
  chunks: Buffer[],
): Promise<FirstBytes> {
  let deadline = startTimer(firstByteMs);
  let [length, wanted] = [0, 1];
  try {
    for (;;) {
      const chunk = socket.read() as Buffer | null;
      if (chunk !== null) {
        if (chunks.length === 0) {
          deadline.stop();
          deadline = startTimer(PROXY_LIMITS.helloMs);
        }
        chunks.push(chunk);
        length += chunk.length;
        if (length < wanted) continue;
        const bytes = Buffer.concat(chunks);
        chunks.splice(0, chunks.length, bytes);
        const found = readFirst(bytes);
        if (typeof found !== 'number') return found;
        wanted = found;
      } else if (socket.readableEnded) {
        if (chunks.length > 0)
          throw new Error('the client has ended before its first message was whole');
        return 'unknown';
      } else if (!(await becomesReadable(socket, deadline.signal))) {
        if (chunks[0]?.[0] === HANDSHAKE) throw new Error('the ClientHello did not come in time');
        return 'unknown';
      }
    }
  } finally {
    deadline.stop();
  }
}

function startTimer(ms: number): { readonly signal: AbortSignal; stop(): void } {
  const controller = new AbortController();
  const timer = setTimeout(() => controller.abort(), ms);
  return { signal: controller.signal, stop: () => clearTimeout(timer) };
}

/** @returns false when nothing came in time; @throws Error when the connection has ended */
async function becomesReadable(socket: Socket, deadline: AbortSignal): Promise<boolean> {
  const { promise, resolve, reject } = Promise.withResolvers<boolean>();
  const onReadable = (): void => resolve(true);
  const onLate = (): void => resolve(false);
  const onClose = (): void => reject(new Error('the client has closed the connection'));
  socket.on('readable', onReadable).on('close', onClose);
  deadline.addEventListener('abort', onLate);
  if (deadline.aborted) onLate();
  if (socket.closed) onClose();
  try {
    return await promise;
  } finally {
    socket.off('readable', onReadable).off('close', onClose);
    deadline.removeEventListener('abort', onLate);
  }
}

/**
 * @returns a number while the bytes could begin either, or a ClientHello is incomplete: how many
 *   bytes to wait for
 */
function readFirst(bytes: Buffer): FirstBytes | number {
  if (bytes[0] === HANDSHAKE) {
    const hello = joinClientHello(bytes);
    return hello === UNREADABLE ? 'unknown' : hello;
  }
  const text = bytes.toString('latin1', 0, LINE_ENDS_MAX + METHOD_LENGTH_MAX + 1);
  const [, method = '', next = ''] = METHOD.exec(text) ?? [];
  if (next === '') return bytes.length + 1;
  const isRequest = method !== '' && next === ' ' && !OTHER_PROTOCOL.test(method);
  return isRequest ? 'http' : 'unknown';
}
