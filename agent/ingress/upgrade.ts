import { Agent, type IncomingMessage, request as httpRequest } from 'node:http';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { answerOf, ANSWERS, answerUpgrade, type OwnAnswer } from './answers.ts';
import { DoorError } from './door-error.ts';
import { answerHeaders } from './forward-headers.ts';

export interface Upgrade {
  readonly request: IncomingMessage;
  /** The caller's connection, which Node reads no longer. */
  readonly socket: Duplex;
  /** Bytes that the caller sent beyond the request. */
  readonly head: Buffer;
  /** Headers of the request, as the guest gets them, without those of the upgrade. */
  readonly headers: readonly string[];
  /** @throws DoorError */
  readonly open: () => Promise<Socket>;
  readonly answerMs: number;
}

/** Passes a WebSocket on to a port of a sandbox. @returns when it has ended on both sides */
export async function upgrade(parts: Upgrade): Promise<void> {
  const { socket } = parts;
  let upstream: Socket;
  try {
    upstream = await parts.open();
  } catch (error) {
    if (!(error instanceof DoorError)) throw error;
    return answerUpgrade(socket, answerOf(error.fault));
  }
  if (socket.destroyed) {
    upstream.destroy();
    return;
  }
  await handshake(parts, upstream);
}

/** Sends the request through a connection of its own; settles when that has ended. */
async function handshake(parts: Upgrade, upstream: Socket): Promise<void> {
  const { request, socket, head, headers, answerMs } = parts;
  const { promise: ended, resolve: end } = Promise.withResolvers<void>();
  upstream.once('close', () => end());
  socket.once('close', () => upstream.destroy());
  const refuse = (own: OwnAnswer): void => {
    answerUpgrade(socket, own);
    upstream.destroy();
  };
  const sent = httpRequest({
    agent: new OneConnection(upstream),
    ...{ method: 'GET', path: request.url, setHost: false },
    headers: [...headers, 'Connection', 'Upgrade', 'Upgrade', 'websocket'],
  });
  const overdue = setTimeout(() => refuse(ANSWERS.slow), answerMs);
  sent.once('upgrade', (answer: IncomingMessage, _socket, rest: Buffer) => {
    clearTimeout(overdue);
    socket.write(headOf(answer, ['Connection: Upgrade', 'Upgrade: websocket']));
    if (rest.length > 0) socket.write(rest);
    if (head.length > 0) upstream.write(head);
    socket.pipe(upstream).pipe(socket);
  });
  sent.once('response', (answer: IncomingMessage) => {
    clearTimeout(overdue);
    // The guest refuses the upgrade. The length of what follows is shown by the connection's end.
    socket.write(headOf(answer, ['Connection: close']));
    answer.pipe(socket);
  });
  sent.once('error', () => {
    clearTimeout(overdue);
    if (!socket.writableEnded) refuse(ANSWERS.broken);
  });
  sent.end();
  await ended;
  clearTimeout(overdue);
}

/** Has one request use a connection that is there already. */
class OneConnection extends Agent {
  readonly #connection: Socket;

  constructor(connection: Socket) {
    super({ keepAlive: false, maxSockets: 1 });
    this.#connection = connection;
  }

  override createConnection(): Socket {
    return this.#connection;
  }
}

function headOf(answer: IncomingMessage, own: readonly string[]): Buffer {
  const { statusCode = 502, statusMessage = '' } = answer;
  const lines = [`HTTP/1.1 ${statusCode} ${statusMessage}`, ...own];
  const passed = answerHeaders(answer.rawHeaders);
  for (let i = 0; i < passed.length; i += 2) {
    const isLength = passed[i]?.toLowerCase() === 'content-length';
    if (!isLength) lines.push(`${passed[i]}: ${passed[i + 1]}`);
  }
  return Buffer.from(`${lines.join('\r\n')}\r\n\r\n`, 'latin1');
}
