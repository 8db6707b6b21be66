import { Duplex } from 'node:stream';
import { connect } from 'node:tls';

const HEAD_BYTES = 5;

/** A TLS record. @param type 0x16 for a part of a handshake */
export function tlsRecord(part: Uint8Array, type = 0x16): Buffer {
  const head = Buffer.from([type, 3, 1, 0, 0]);
  head.writeUInt16BE(part.length, 3);
  return Buffer.concat([head, part]);
}

/**
 * The ClientHello that Node sends, without the head of its record.
 * @param servername undefined: it names no host
 */
export async function clientHello(servername?: string): Promise<Buffer> {
  const { promise, resolve } = Promise.withResolvers<Buffer>();
  const wire = new Duplex({
    read: () => undefined,
    write(chunk: Buffer, _encoding, done) {
      resolve(chunk);
      done();
    },
  });
  const client = connect({ socket: wire, ...(servername === undefined ? {} : { servername }) });
  client.on('error', () => undefined);
  const sent = await promise;
  client.destroy();
  return sent.subarray(HEAD_BYTES);
}

/** The message in several records, the first of which ends at the first cut. */
export function inRecords(message: Buffer, cuts: readonly number[]): Buffer {
  const ends = [...cuts, message.length];
  return Buffer.concat(ends.map((end, at) => tlsRecord(message.subarray(ends[at - 1] ?? 0, end))));
}
