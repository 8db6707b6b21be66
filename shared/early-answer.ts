import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';

/** How long a peer that is still sending is listened to after its answer. */
const LINGER_MS = 1_000;

/** Nothing more of what comes on these is a request. */
const abandoned = new WeakSet<Socket>();

/** Whether the connection has had its last answer, or is about to. */
export const isAbandoned = ({ socket }: IncomingMessage): boolean => abandoned.has(socket);

/**
 * For an answer that comes before the end of its request's body, or to a request that must not have
 * a next one: the connection is closed after it, but not at once. Closing it under a peer that still
 * sends resets it, and the peer may come to know of that before it has read the answer; so what it
 * sends is dropped for a moment (RFC 9112, section 9.6), requests that Node has parsed already
 * among it. To be called before the head of the answer is written.
 */
export function lingerAfterAnswer(request: IncomingMessage, response: ServerResponse): void {
  const { socket } = request;
  abandoned.add(socket);
  response.setHeader('connection', 'close');
  // What Node's server calls when such an answer was handed to the system.
  socket.destroySoon = () => {
    socket.end();
    request.resume();
    const timer = setTimeout(() => socket.destroy(), LINGER_MS);
    socket.once('close', () => clearTimeout(timer));
  };
}
