import { type IncomingMessage, STATUS_CODES, type ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';
import { lingerAfterAnswer } from '../../../shared/http/early-answer.ts';
import type { DoorFault } from './messages.ts';

/** An answer of the ingress itself. */
export interface OwnAnswer {
  readonly status: 400 | 401 | 404 | 431 | 500 | 502 | 503 | 504;
  readonly message: string;
}

const RETRY_AFTER_SECONDS = 2;

export const ANSWERS = {
  unknownHost: { status: 404, message: 'no sandbox is reached by this hostname' },
  /** The same whether there is such a sandbox or not. */
  unauthorized: {
    status: 401,
    message:
      'this port is private, or there is no such sandbox: send a port token in X-Service-Token',
  },
  directoryAway: { status: 503, message: 'the directory cannot be reached now; try again' },
  badTarget: { status: 400, message: 'send the path of the request, not a whole URL' },
  broken: {
    status: 502,
    message: 'the sandbox broke the connection off, or its answer is not HTTP',
  },
  slow: { status: 504, message: 'the sandbox did not answer in time' },
  failed: { status: 500, message: 'internal error' },
} as const satisfies Record<string, OwnAnswer>;

const OF_FAULT: Readonly<Record<DoorFault, OwnAnswer>> = {
  nothing_listens: { status: 502, message: 'nothing listens on this port of the sandbox' },
  not_found: { status: 503, message: 'the sandbox is not there now; try again' },
  not_running: { status: 503, message: 'the sandbox does not run' },
  unavailable: { status: 503, message: 'the sandbox cannot be brought up now; try again' },
  timeout: { status: 504, message: 'the sandbox did not come up, or did not connect, in time' },
};

export const answerOf = (fault: DoorFault): OwnAnswer => OF_FAULT[fault];

const headersOf = ({ status, message }: OwnAnswer): string[] => [
  ...['Content-Type', 'text/plain; charset=utf-8'],
  ...['Content-Length', String(Buffer.byteLength(message) + 1)],
  ...(status === 401 ? ['WWW-Authenticate', 'X-Service-Token'] : []),
  ...(status === 503 ? ['Retry-After', String(RETRY_AFTER_SECONDS)] : []),
];

/** Answers a request that was not passed on. */
export function answer(request: IncomingMessage, response: ServerResponse, own: OwnAnswer): void {
  if (!request.complete) lingerAfterAnswer(request, response);
  response.writeHead(own.status, headersOf(own));
  response.end(request.method === 'HEAD' ? undefined : `${own.message}\n`);
}

/** Answers a request for an upgrade that was not passed on, and ends its connection. */
export function answerUpgrade(socket: Duplex, own: OwnAnswer): void {
  const lines = [`HTTP/1.1 ${own.status} ${STATUS_CODES[own.status]}`, 'Connection: close'];
  const headers = headersOf(own);
  for (let i = 0; i < headers.length; i += 2) lines.push(`${headers[i]}: ${headers[i + 1]}`);
  socket.end(`${lines.join('\r\n')}\r\n\r\n${own.message}\n`, () => socket.destroy());
}
