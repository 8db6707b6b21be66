import type { IncomingMessage, ServerResponse } from 'node:http';

const waiting = new WeakSet<IncomingMessage>();

/** Notes that a client sends its body only once it is told to (`Expect: 100-continue`). */
export function noteExpectation(request: IncomingMessage, response: ServerResponse): void {
  waiting.add(request);
  const writeContinue = response.writeContinue.bind(response);
  response.writeContinue = (callback) => {
    waiting.delete(request);
    writeContinue(callback);
  };
}

/** Whether the client has not been told yet to send the body. */
export const awaitsContinue = (request: IncomingMessage): boolean => waiting.has(request);
