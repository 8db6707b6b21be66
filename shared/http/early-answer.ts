import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';

/** How long to keep reading from a peer that still sends after its answer. */
const LINGER_MS = 1_000;

/** Connections that had their last answer; what still arrives on them is dropped. */
const abandoned = new WeakSet<Socket>();

/** Whether the connection has had its last answer or is about to have it. */
export const isAbandoned = ({ socket }: IncomingMessage): boolean => abandoned.has(socket);

/**
 * Closes the connection after this answer, but lingers for `LINGER_MS` first. Call it before the
 * head of the answer is written, when the answer precedes the end of the request's body or the
 * request must be the connection's last. Closing at once while the peer still sends resets the
 * connection, and the peer may see the reset before it has read the answer (RFC 9112, section 9.6).
 * What arrives meanwhile is dropped, requests that Node has already parsed included.
 */
export function lingerAfterAnswer(request: IncomingMessage, response: ServerResponse): void {
  const { socket } = request;
  abandoned.add(socket);
  response.setHeader('connection', 'close');
  // Node's server calls this once the answer was handed to the operating system.
  socket.destroySoon = () => {
    socket.end();
    request.resume();
    const timer = setTimeout(() => socket.destroy(), LINGER_MS);
    socket.once('close', () => clearTimeout(timer));
  };
}
