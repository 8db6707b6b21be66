import type { IncomingMessage, ServerResponse } from 'node:http';

const waiting = new WeakSet<IncomingMessage>();

/** Records that the client waits for `100 Continue` before it sends its body. */
export function noteExpectation(request: IncomingMessage, response: ServerResponse): void {
  waiting.add(request);
  const writeContinue = response.writeContinue.bind(response);
  response.writeContinue = (callback) => {
    waiting.delete(request);
    writeContinue(callback);
  };
}

/** Whether the client still waits for `100 Continue`. */
export const awaitsContinue = (request: IncomingMessage): boolean => waiting.has(request);
