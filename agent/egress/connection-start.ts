import { once } from 'node:events';
import type { Socket } from 'node:net';
import { getExtensionData, readTlsClientHello } from 'read-tls-client-hello';
import { normalizeName } from '../../shared/network/egress-target.ts';

/** The protocol of a connection's first bytes, and the host name in them. */
export type ConnectionStart =
  | { readonly kind: 'tls'; readonly name: string | undefined }
  | { readonly kind: 'http' }
  | { readonly kind: 'other' };

/** The first byte of a TLS record with a handshake. */
const HANDSHAKE = 0x16;
const SERVER_NAME = 0;
/** In some protocols the server speaks first. */
const FIRST_BYTES_MS = 3_000;
const HELLO_MS = 10_000;
const METHOD_LENGTH_MAX = 20;

/**
 * Reads as much as tells what a connection is, and puts it back.
 * @throws Error when the client closes or is too slow
 */
export async function readConnectionStart(socket: Socket): Promise<ConnectionStart> {
  const deadline = AbortSignal.timeout(FIRST_BYTES_MS);
  const chunks: Buffer[] = [];
  let kind: 'tls' | 'http' | 'other' | undefined;
  while (kind === undefined) {
    const chunk = socket.read() as Buffer | null;
    if (chunk !== null) {
      chunks.push(chunk);
      kind = kindOf(Buffer.concat(chunks));
    } else if (socket.readableEnded || !(await becomesReadable(socket, deadline))) {
      kind = 'other';
    }
  }
  if (socket.destroyed) throw new Error('the client has closed the connection');
  if (chunks.length > 0) socket.unshift(Buffer.concat(chunks));
  return kind === 'tls' ? { kind, name: await readServerName(socket) } : { kind };
}

/** @returns false when nothing came in time; @throws Error when the connection has ended */
async function becomesReadable(socket: Socket, deadline: AbortSignal): Promise<boolean> {
  const settled = new AbortController();
  const signal = AbortSignal.any([deadline, settled.signal]);
  try {
    await Promise.race([
      once(socket, 'readable', { signal }),
      once(socket, 'close', { signal }).then(() => {
        throw new Error('the client has closed the connection');
      }),
    ]);
    return true;
  } catch (error) {
    if (deadline.aborted) return false;
    throw error;
  } finally {
    settled.abort();
  }
}

/** @returns undefined while the bytes could begin either */
function kindOf(bytes: Buffer): 'tls' | 'http' | 'other' | undefined {
  if (bytes[0] === HANDSHAKE) return 'tls';
  const text = bytes.toString('latin1', 0, METHOD_LENGTH_MAX + 1);
  if (/^[A-Z]+$/u.test(text) && text.length <= METHOD_LENGTH_MAX) return undefined;
  // HTTP/2 without TLS names hosts in frames that only a parser of HTTP/2 can read.
  return /^[A-Z]+ /u.test(text) && !text.startsWith('PRI ') ? 'http' : 'other';
}

/**
 * The name in a ClientHello (RFC 6066); undefined when there is none, or more than one, or when the
 * hello is not one plain record. With ECH it is the outer name: a connection leads there, and what
 * is encrypted can choose among that server's sites only, like the Host of a request within TLS.
 */
async function readServerName(socket: Socket): Promise<string | undefined> {
  const timer = setTimeout(() => socket.destroy(), HELLO_MS);
  try {
    const hello = await readTlsClientHello(socket);
    if (hello.extensions.filter(({ id }) => id === SERVER_NAME).length !== 1) return undefined;
    const name = getExtensionData(hello, 'sni')?.serverName;
    return name === undefined ? undefined : normalizeName(name);
  } catch {
    if (socket.destroyed) throw new Error('the client sent no ClientHello in time');
    return undefined;
  } finally {
    clearTimeout(timer);
  }
}
