import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { createServer, type Socket } from 'node:net';
import type { EgressServer } from './egress-server.ts';
import type { NamesAddress } from './egress-settings.ts';
import { refuseQuestion } from './name-question.ts';

/** Connections of all slots; each has few (agent/network/slots/question-rules.ts). */
const CONNECTIONS_MAX = 256;
const IDLE_MS = 5_000;
/** The length before each message over TCP (RFC 1035, 4.2.2). */
const LENGTH_BYTES = 2;
/** No question is longer: it has one name and some options. */
const QUESTION_BYTES_MAX = 4096;

/**
 * Answers questions for names that no rule of their slot allows, so that they leave the host under
 * no circumstances, and has the slot count them. Slots are told apart by the addresses that
 * questions come from.
 * @throws Error when it cannot listen there
 */
export async function refuseNames(
  server: EgressServer,
  { address, port }: NamesAddress,
): Promise<void> {
  const refuse = (message: Buffer, asker: string | undefined): Buffer | undefined => {
    const refusal = refuseQuestion(message);
    if (refusal?.name !== undefined) server.slotAsking(asker ?? '')?.refuseName(refusal.name);
    return refusal?.answer;
  };
  const datagrams = createSocket('udp4');
  datagrams.bind(port, address);
  await once(datagrams, 'listening');
  // A question whose answer cannot be sent is asked again.
  datagrams.on('error', () => undefined);
  datagrams.on('message', (message, from) => {
    const answer = refuse(message, from.address);
    if (answer !== undefined) datagrams.send(answer, from.port, from.address, () => undefined);
  });
  const streams = createServer({ noDelay: true }, (socket) =>
    serveStream(socket, (message) => refuse(message, socket.remoteAddress)),
  );
  streams.maxConnections = CONNECTIONS_MAX;
  streams.listen(port, address);
  await once(streams, 'listening');
}

/** Answers one question after the other. */
function serveStream(socket: Socket, refuse: (message: Buffer) => Buffer | undefined): void {
  let held: Buffer = Buffer.alloc(0);
  socket.on('error', () => socket.destroy());
  socket.setTimeout(IDLE_MS, () => socket.destroy());
  socket.on('data', (chunk: Buffer) => {
    held = Buffer.concat([held, chunk]);
    while (held.length >= LENGTH_BYTES) {
      const end = LENGTH_BYTES + held.readUInt16BE(0);
      if (held.length < end && end <= QUESTION_BYTES_MAX) return;
      // A peer that does not read its answers gets no more of them.
      const isTooMuch = end > QUESTION_BYTES_MAX || socket.writableLength > QUESTION_BYTES_MAX;
      const answer = isTooMuch ? undefined : refuse(held.subarray(LENGTH_BYTES, end));
      if (answer === undefined) {
        socket.destroy();
        return;
      }
      const length = Buffer.alloc(LENGTH_BYTES);
      length.writeUInt16BE(answer.length);
      socket.write(Buffer.concat([length, answer]));
      held = held.subarray(end);
    }
  });
}
