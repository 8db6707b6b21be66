import { Readable } from 'node:stream';
import { getExtensionData, readTlsClientHello } from 'read-tls-client-hello';
import { normalizeName } from '../../shared/network/egress-target.ts';

/** The most that a ClientHello may take, with the heads of its records. */
const HELLO_BYTES_MAX = 16 * 1024;
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
 * Puts the first handshake message of a connection together, which may lie in several records and
 * begin or end anywhere in them (RFC 8446, 5.1).
 * @param bytes all that the client has sent so far
 * @returns the ClientHello; undefined while more of it is to come; or {@link UNREADABLE}, as when a
 *   record of another type comes before its end, or a second message shares its last record
 */
export function joinClientHello(bytes: Buffer): Buffer | typeof UNREADABLE | undefined {
  const parts: Buffer[] = [];
  let length = 0;
  let wanted: number | undefined;
  for (let at = 0; at < HELLO_BYTES_MAX;) {
    const head = bytes.subarray(at, at + RECORD_HEAD_BYTES);
    if (head.length > 0 && head[0] !== HANDSHAKE) return UNREADABLE;
    if (head.length > 1 && head[1] !== VERSION_MAJOR) return UNREADABLE;
    if (head.length < RECORD_HEAD_BYTES) return undefined;
    const from = at + RECORD_HEAD_BYTES;
    at = from + head.readUInt16BE(3);
    if (at === from || at > HELLO_BYTES_MAX) return UNREADABLE;
    const part = bytes.subarray(from, at);
    parts.push(part);
    length += part.length;
    const told = wanted ?? lengthOf(Buffer.concat(parts));
    if (told === UNREADABLE || (told !== undefined && length > told)) return UNREADABLE;
    if (part.length < at - from) return undefined;
    if (length === told) return Buffer.concat(parts);
    wanted = told;
  }
  return UNREADABLE;
}

/** The length of a message with its head; undefined while that is incomplete. */
function lengthOf(message: Buffer): number | typeof UNREADABLE | undefined {
  if (message.length > 0 && message[0] !== CLIENT_HELLO) return UNREADABLE;
  if (message.length < MESSAGE_HEAD_BYTES) return undefined;
  const length = MESSAGE_HEAD_BYTES + message.readUIntBE(1, 3);
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
