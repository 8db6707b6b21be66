import { Agent, type IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import { type Duplex, pipeline } from 'node:stream';
import { ExactResponse } from '../../../shared/http/exact-response.ts';
import { beginRequest } from '../../../shared/http/send-request.ts';
import { answerOf, ANSWERS, answerUpgrade, type OwnAnswer } from './answers.ts';
import { DoorError } from './door-error.ts';
import { answerHeaders, reasonOf } from './forward-headers.ts';

const SWITCHING = 101;
const REFUSALS_FROM = 200;

export interface Upgrade {
  readonly request: IncomingMessage;
  /** The caller's connection, which Node reads no longer. */
  readonly socket: Duplex;
  /** Bytes that the caller sent beyond the request. */
  readonly head: Buffer;
  /** Headers of the request, as the guest gets them, without those of the upgrade. */
  readonly headers: readonly string[];
  /** In lower case. */
  readonly zone: string;
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
  const { request, socket, head, headers, zone, answerMs } = parts;
  const { promise: ended, resolve: end } = Promise.withResolvers<void>();
  let isAnswered = false;
  // A reset by the guest must not end this thread, which serves others too; `close` follows.
  upstream.on('error', () => undefined);
  upstream.once('close', () => end());
  socket.once('close', () => upstream.destroy());
  const fail = (own: OwnAnswer): void => {
    if (isAnswered) socket.destroy();
    else answerUpgrade(socket, own);
    isAnswered = true;
    upstream.destroy();
  };
  const sent = beginRequest(false, {
    agent: new OneConnection(upstream),
    ...{ method: 'GET', path: request.url, setHost: false },
    headers: [...headers, 'Connection', 'Upgrade', 'Upgrade', 'websocket'],
  });
  const overdue = setTimeout(() => fail(ANSWERS.slow), answerMs);
  sent.once('upgrade', (answer: IncomingMessage, _socket, rest: Buffer) => {
    clearTimeout(overdue);
    isAnswered = true;
    socket.write(headOf(answer, zone));
    if (rest.length > 0) socket.write(rest);
    if (head.length > 0) upstream.write(head);
    socket.pipe(upstream).pipe(socket);
    // The guest broke the connection off without ending it.
    upstream.once('close', () => {
      if (!socket.writableEnded) socket.destroy();
    });
  });
  sent.once('response', (answer: IncomingMessage) => {
    clearTimeout(overdue);
    // A switch to no protocol, or no status at all.
    if ((answer.statusCode ?? 0) < REFUSALS_FROM) return fail(ANSWERS.broken);
    isAnswered = true;
    try {
      passRefusal(request, answer, zone);
    } catch {
      fail(ANSWERS.broken); // An earlier request on the caller's connection waits for its answer.
    }
  });
  sent.on('error', () => fail(ANSWERS.broken));
  sent.end();
  await ended;
  clearTimeout(overdue);
}

/**
 * Passes on an answer by which the guest refuses the upgrade, and ends the caller's connection.
 * @throws Error while another answer has the connection
 */
function passRefusal(request: IncomingMessage, answer: IncomingMessage, zone: string): void {
  const { socket } = request;
  const response = new ExactResponse(request);
  response.shouldKeepAlive = false;
  response.assignSocket(socket);
  const { statusCode = 502, statusMessage } = answer;
  const reason = reasonOf(statusCode, statusMessage);
  response.writeHead(statusCode, reason, answerHeaders(answer.rawHeaders, zone));
  pipeline(answer, response, (error) => {
    if (error === undefined || error === null) socket.end(() => socket.destroy());
    else socket.destroy(); // Cut short, as the guest's answer was.
  });
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

function headOf(answer: IncomingMessage, zone: string): Buffer {
  const lines = [`HTTP/1.1 ${SWITCHING} ${reasonOf(SWITCHING, answer.statusMessage)}`];
  lines.push('Connection: Upgrade', 'Upgrade: websocket');
  const passed = answerHeaders(answer.rawHeaders, zone);
  for (let i = 0; i < passed.length; i += 2) {
    const isLength = passed[i]?.toLowerCase() === 'content-length';
    if (!isLength) lines.push(`${passed[i]}: ${passed[i + 1]}`);
  }
  return Buffer.from(`${lines.join('\r\n')}\r\n\r\n`, 'latin1');
}
