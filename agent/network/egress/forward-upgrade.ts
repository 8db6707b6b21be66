import type { IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { isAbandoned } from '../../../shared/http/early-answer.ts';
import { ExactResponse } from '../../../shared/http/exact-response.ts';
import { runForConnection } from './connection-work.ts';
import type { GuestConnection } from './guest-connection.ts';
import { pairsOf } from './request-head.ts';
import { redactHeaders, sendAnswer } from './send-answer.ts';
import type { Secrets } from './secrets.ts';
import { joinSockets } from './tunnel.ts';
import { isRefusal, openRequest, planRequest } from './upstream-request.ts';

const TASK = 'egress.upgrade';

/** Only this protocol: in others, a connection could serve several hosts (HTTP/2). */
export const isWebSocket = ({ method, headers }: IncomingMessage): boolean =>
  method === 'GET' && headers.upgrade?.toLowerCase() === 'websocket';

/** Sends the handshake of a WebSocket on, and then its bytes. */
async function forwardUpgrade(
  connection: GuestConnection,
  request: IncomingMessage,
  socket: Duplex,
  head: Buffer,
): Promise<void> {
  if (!socket.writable || isAbandoned(request)) return; // An earlier request was the last to be answered.
  const planned = await planRequest(connection, request);
  if (socket.destroyed) return;
  if (isRefusal(planned)) return refuse(socket, planned.status, planned.problem);
  const extras = ['Connection', 'Upgrade', 'Upgrade', 'websocket'];
  const upstream = openRequest(connection, planned, extras);
  socket.once('close', () => upstream.destroy());
  const end = (): unknown => socket.destroy();
  let isAnswered = false;
  upstream.on('error', () => {
    if (isAnswered) end();
    else refuse(socket, 502, `${planned.host} could not be reached`);
  });
  upstream.once('response', (answer) => {
    isAnswered = true;
    runForConnection(TASK, end, () => answerPlainly(request, socket, answer, planned.secrets));
  });
  upstream.once('upgrade', (answer, server, serverHead) => {
    const endBoth = (): void => {
      end();
      server.destroy();
    };
    runForConnection(TASK, endBoth, () => {
      const headers = redactHeaders(pairsOf(answer.rawHeaders), planned.secrets);
      const lines = headers.map(([name, value]) => `${name}: ${value}\r\n`).join('');
      socket.write(`HTTP/1.1 101 Switching Protocols\r\n${lines}\r\n`, 'latin1');
      if (head.length > 0) socket.unshift(head);
      if (serverHead.length > 0) server.unshift(serverHead);
      const answers = planned.secrets?.newRedactor();
      joinSockets(socket, server, { answers, onEnd: () => undefined });
    });
  });
  upstream.end();
}

/** The server does not switch protocols. */
function answerPlainly(
  request: IncomingMessage,
  socket: Duplex,
  answer: IncomingMessage,
  secrets: Secrets | undefined,
): void {
  const response = new ExactResponse(request);
  response.shouldKeepAlive = false;
  response.assignSocket(socket as Socket);
  response.once('finish', () => socket.end());
  if (!sendAnswer(answer, response, secrets)) socket.destroy();
}

function refuse(socket: Duplex, status: number, problem: string): void {
  if (socket.writableEnded) return;
  const body = `Berth: ${problem}\n`;
  const head = `HTTP/1.1 ${status} Refused\r\nConnection: close\r\nContent-Type: text/plain\r\n`;
  socket.end(`${head}Content-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`);
}

/**
 * For the `upgrade` event of a server. Node emits it although earlier requests of the connection
 * still await their answers, and it comes after them.
 */
export function handleUpgrade(
  connection: GuestConnection,
  request: IncomingMessage,
  socket: Duplex,
  head: Buffer,
): void {
  const end = (): unknown => socket.destroy();
  socket.on('error', end);
  runForConnection(TASK, end, () =>
    connection.exchanges.add(() => forwardUpgrade(connection, request, socket, head)),
  );
}
