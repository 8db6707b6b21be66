import { Agent } from 'node:https';
import { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { MiB } from '../../../shared/units.ts';

/**
 * A page has 2,500 names of 1,024 characters, each perhaps escaped by five, and their properties.
 */
const ANSWER_BYTES_MAX = 16 * MiB;

/**
 * Ends connections on which nothing arrives, or more than any answer of the service has. Azure's
 * SDK has no limit of its own for either, and collects all answers but those to requests for
 * ranges.
 */
export class GuardedAgent extends Agent {
  override createConnection(
    ...args: Parameters<Agent['createConnection']>
  ): Duplex | null | undefined {
    const socket = super.createConnection(...args);
    socket?.on('timeout', () => {
      socket.destroy(Object.assign(new Error('no answer in time'), { code: 'ETIMEDOUT' }));
    });
    if (socket instanceof Socket) boundAnswers(socket);
    return socket;
  }
}

/** Requests of a connection follow each other: an answer is what arrives while nothing is sent. */
function boundAnswers(socket: Socket): void {
  let sentBytes = 0;
  let answerBytes = 0;
  socket.on('data', (chunk: Buffer) => {
    const { bytesWritten } = socket;
    if (bytesWritten !== sentBytes) answerBytes = 0;
    sentBytes = bytesWritten;
    answerBytes += chunk.length;
    if (answerBytes > ANSWER_BYTES_MAX) {
      socket.destroy(new Error('the answer of the storage is too long'));
    }
  });
}
