import { Duplex } from 'node:stream';
import { connect } from 'node:tls';

const HEAD_BYTES = 5;
/** Type and length of a handshake message. */
const MESSAGE_HEAD_BYTES = 4;

/** A TLS record. @param type 0x16 for a part of a handshake */
export function tlsRecord(part: Uint8Array, type = 0x16): Buffer {
  const head = Buffer.from([type, 3, 1, 0, 0]);
  head.writeUInt16BE(part.length, 3);
  return Buffer.concat([head, part]);
}

/**
 * The ClientHello that Node sends, without the head of its record.
 * @param servername undefined: it names no host
 * @param ALPNProtocols names of protocols, with which it gets as long as a test needs it
 */
export async function clientHello(servername?: string, ALPNProtocols?: string[]): Promise<Buffer> {
  const { promise, resolve } = Promise.withResolvers<Buffer>();
  let sent = Buffer.alloc(0);
  const wire = new Duplex({
    read: () => undefined,
    write(chunk: Buffer, _encoding, done) {
      sent = Buffer.concat([sent, chunk]);
      const message = withoutHeads(sent);
      if (message.length === MESSAGE_HEAD_BYTES + message.readUIntBE(1, 3)) resolve(message);
      done();
    },
  });
  const client = connect({
    socket: wire,
    ...(servername === undefined ? {} : { servername }),
    ...(ALPNProtocols === undefined ? {} : { ALPNProtocols }),
  });
  client.on('error', () => undefined);
  const message = await promise;
  client.destroy();
  return message;
}

/** The payloads of these records, joined. */
function withoutHeads(records: Buffer): Buffer {
  const parts: Buffer[] = [];
  for (let at = 0; at < records.length;) {
    const from = at + HEAD_BYTES;
    at = from + records.readUInt16BE(from - 2);
    parts.push(records.subarray(from, at));
  }
  return Buffer.concat(parts);
}

/** The message in several records, the first of which ends at the first cut. */
export function inRecords(message: Buffer, cuts: readonly number[]): Buffer {
  const ends = [...cuts, message.length];
  return Buffer.concat(ends.map((end, at) => tlsRecord(message.subarray(ends[at - 1] ?? 0, end))));
}
