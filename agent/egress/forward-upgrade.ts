import { type IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { runInBackground } from '../../shared/background.ts';
import type { GuestConnection } from './guest-connection.ts';
import { pairsOf } from './request-head.ts';
import { redactHeaders, sendAnswer } from './send-answer.ts';
import type { Secrets } from './secrets.ts';
import { joinSockets } from './tunnel.ts';
import { isRefusal, openRequest, planRequest } from './upstream-request.ts';

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
  socket.on('error', () => socket.destroy());
  const planned = await planRequest(connection, request);
  if (socket.destroyed) return;
  if (isRefusal(planned)) return refuse(socket, planned.status, planned.problem);
  const extras = ['Connection', 'Upgrade', 'Upgrade', 'websocket'];
  const upstream = openRequest(connection, planned, extras);
  socket.once('close', () => upstream.destroy());
  upstream.on('error', () => refuse(socket, 502, `${planned.host} could not be reached`));
  upstream.once('response', (answer) => answerPlainly(request, socket, answer, planned.secrets));
  upstream.once('upgrade', (answer, server, serverHead) => {
    const headers = redactHeaders(pairsOf(answer.rawHeaders), planned.secrets);
    const lines = headers.map(([name, value]) => `${name}: ${value}\r\n`).join('');
    socket.write(`HTTP/1.1 101 Switching Protocols\r\n${lines}\r\n`, 'latin1');
    if (head.length > 0) socket.unshift(head);
    if (serverHead.length > 0) server.unshift(serverHead);
    const answers = planned.secrets?.newRedactor();
    joinSockets(socket, server, { answers, onEnd: () => undefined });
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
  const response = new ServerResponse(request);
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

/** For the `upgrade` event of a server. */
export const handleUpgrade = (
  connection: GuestConnection,
  request: IncomingMessage,
  socket: Duplex,
  head: Buffer,
): void =>
  runInBackground('egress.upgrade', () =>
    forwardUpgrade(connection, request, socket, head).catch((error: unknown) => {
      socket.destroy();
      throw error;
    }),
  );
