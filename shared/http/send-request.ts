import { once } from 'node:events';
import { type ClientRequest, type IncomingMessage, request as requestPlain } from 'node:http';
import { request as requestSecure, type RequestOptions } from 'node:https';

/**
 * Makes Node write the head byte by byte as it is. For a request that expects 100-continue, or a
 * head that is flushed, Node would encode it as UTF-8, which changes bytes above 127. Call this
 * once the head is queued and before anything is written.
 */
function keepHeadBytes(sent: ClientRequest): void {
  const queued = Reflect.get(sent, 'outputData') as { encoding?: string | undefined }[];
  for (const part of queued) part.encoding = 'latin1';
}

/**
 * Begins a request; all requests of control and agent are begun here. What the peer answers, even
 * bytes that are no HTTP after the head of an answer, ends the request at most and never the
 * process, since failures have a listener before anything is sent. The answer's stream ends early
 * then. Names and values of headers have one character a byte; as an array they leave in their
 * order, and `Content-Length` must be the last of them (see `ExactResponse`).
 * @param isSecure whether to use TLS
 */
export function beginRequest(isSecure: boolean, options: RequestOptions): ClientRequest {
  const sent = isSecure ? requestSecure(options) : requestPlain(options);
  sent.on('error', () => undefined);
  // Node drops an unrequested upgrade without an event: fail the request, or its caller hangs.
  sent.once('upgrade', (_answer, socket) => {
    socket.on('error', () => undefined);
    if (sent.listenerCount('upgrade') > 0) return;
    socket.destroy();
    sent.emit('error', new Error('the peer switched protocols, which was not asked for'));
  });
  keepHeadBytes(sent);
  return sent;
}

/** Sends the head of a request that was just begun, before there is any of its body. */
export function flushHead(sent: ClientRequest): void {
  sent.flushHeaders();
  keepHeadBytes(sent);
}

/** Calls back once an answer is closed, also when it is already. */
export function whenClosed(answer: IncomingMessage, call: () => void): void {
  if (answer.closed) call();
  else answer.once('close', call);
}

/**
 * Waits for the head of the answer. It may have broken off by then: `closed` is true, and reading
 * it fails.
 * @throws Error as Node's requests fail
 */
export async function awaitAnswer(sent: ClientRequest): Promise<IncomingMessage> {
  const [answer] = (await once(sent, 'response')) as [IncomingMessage];
  return answer;
}
