import type { IncomingMessage, ServerResponse } from 'node:http';

/** How long a peer that is still sending is listened to after its answer. */
const LINGER_MS = 1_000;

/**
 * For an answer that comes before the end of its request's body: the connection is closed after
 * it, but not at once. Closing it under a peer that still sends resets it, and the peer may come to
 * know of that before it has read the answer; so what it sends is dropped for a moment (RFC 9112,
 * section 9.6). To be called before the head of the answer is written.
 */
export function lingerAfterAnswer(request: IncomingMessage, response: ServerResponse): void {
  const { socket } = request;
  response.setHeader('connection', 'close');
  // What Node's server calls when such an answer was handed to the system.
  socket.destroySoon = () => {
    socket.end();
    request.resume();
    const timer = setTimeout(() => socket.destroy(), LINGER_MS);
    socket.once('close', () => clearTimeout(timer));
  };
}
