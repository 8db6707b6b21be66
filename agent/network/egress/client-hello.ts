import { Readable } from 'node:stream';
import { getExtensionData, readTlsClientHello } from 'read-tls-client-hello';
import { normalizeName } from '../../../shared/network/egress-target.ts';

/** The most that a ClientHello may take, with the heads of its records. */
const HELLO_BYTES_MAX = 16 * 1024;
/** Clients cut a ClientHello into a few records, if at all. Each one is work for the proxy. */
const HELLO_RECORDS_MAX = 32;
/** RFC 8446, 5.1: type, version and length of a record. */
const RECORD_HEAD_BYTES = 5;
/** RFC 8446, 4: type and length of a handshake message. */
const MESSAGE_HEAD_BYTES = 4;
/** The first byte of a record with a part of a handshake. */
export const HANDSHAKE = 0x16;
const CLIENT_HELLO = 1;
const VERSION_MAJOR = 3;
/** The version that every client may write in front of its ClientHello. */
const PLAIN_HEAD = [HANDSHAKE, VERSION_MAJOR, 1];
const SERVER_NAME = 0;

/** A hello that is not one, or not in a form in which every server would read the same. */
export const UNREADABLE: unique symbol = Symbol('unreadable');

/**
 * Reassembles the first handshake message of a connection, which may be split over several records
 * at any byte (RFC 8446, 5.1).
 * @param bytes everything received from the client so far
 * @returns the ClientHello; the number of bytes to wait for, if it is incomplete; or
 *   {@link UNREADABLE}, as when a record of another type comes before its end, a second message
 *   shares its last record, or it has more than {@link HELLO_RECORDS_MAX} records
 */
export function joinClientHello(bytes: Buffer): Buffer | typeof UNREADABLE | number {
  const parts: Buffer[] = [];
  let head = Buffer.alloc(0);
  let length = 0;
  let at = 0;
  while (parts.length < HELLO_RECORDS_MAX) {
    const from = at + RECORD_HEAD_BYTES;
    if (from > HELLO_BYTES_MAX) return UNREADABLE;
    if (bytes.length < from) return from;
    if (bytes[at] !== HANDSHAKE || bytes[at + 1] !== VERSION_MAJOR) return UNREADABLE;
    at = from + bytes.readUInt16BE(from - 2);
    if (at === from || at > HELLO_BYTES_MAX) return UNREADABLE;
    if (bytes.length < at) return at;
    const part = bytes.subarray(from, at);
    parts.push(part);
    length += part.length;
    head = Buffer.concat([head, part.subarray(0, MESSAGE_HEAD_BYTES - head.length)]);
    const wanted = lengthOf(head);
    if (wanted === UNREADABLE || (wanted !== undefined && length > wanted)) return UNREADABLE;
    if (length === wanted) return Buffer.concat(parts);
  }
  return UNREADABLE;
}

/** The length of a message with its head; undefined while that is incomplete. */
function lengthOf(head: Buffer): number | typeof UNREADABLE | undefined {
  if (head[0] !== CLIENT_HELLO) return UNREADABLE;
  if (head.length < MESSAGE_HEAD_BYTES) return undefined;
  const length = MESSAGE_HEAD_BYTES + head.readUIntBE(1, 3);
  return length > HELLO_BYTES_MAX ? UNREADABLE : length;
}

/**
 * The name that a ClientHello asks for (RFC 6066, 3), in its normal form; undefined when it has
 * none. With ECH it is the outer name: a connection leads there, and what is encrypted can choose
 * among that server's sites only, like the Host of a request within TLS.
 * @param message from {@link joinClientHello}
 * @returns {@link UNREADABLE} also when there is more than one name, or one that no host has
 */
export async function serverNameOf(
  message: Buffer,
): Promise<string | typeof UNREADABLE | undefined> {
  const record = Buffer.alloc(RECORD_HEAD_BYTES);
  record.set(PLAIN_HEAD);
  record.writeUInt16BE(message.length, PLAIN_HEAD.length);
  try {
    const hello = await readTlsClientHello(
      Readable.from([Buffer.concat([record, message])], { objectMode: false }),
    );
    const named = hello.extensions.filter(({ id }) => id === SERVER_NAME);
    if (named.length === 0) return undefined;
    const name = getExtensionData(hello, 'sni')?.serverName;
    if (named.length > 1 || name === undefined) return UNREADABLE;
    return normalizeName(name) ?? UNREADABLE;
  } catch {
    return UNREADABLE;
  }
}
