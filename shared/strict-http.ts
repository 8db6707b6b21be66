import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import { isAbandoned, lingerAfterAnswer } from './early-answer.ts';
import { findFramingFault } from './http-framing.ts';

/** For `createServer`: also when the environment asks Node for its lenient parser. */
export const STRICT_PARSER = { insecureHTTPParser: false, requireHostHeader: true } as const;

/** @param awaitsContinue the client sends the body once it is told to (RFC 9110, section 10.1.1) */
type RequestHandler = (
  request: IncomingMessage,
  response: ServerResponse,
  awaitsContinue: boolean,
) => void;

export interface Refusal {
  readonly contentType: string;
  readonly body: string;
}

export interface StrictHttpOptions {
  readonly handle: RequestHandler;
  /** The body of a refusal. */
  readonly render: (request: IncomingMessage, problem: string) => Refusal;
  readonly onRefused: (request: IncomingMessage, problem: string) => void;
}

/**
 * Serves requests whose framing leaves no doubt where they end. All others are answered with 400,
 * or 417, before anything else looks at them, and end their connection.
 */
export function serveStrictly(
  server: Server,
  { handle, render, onRefused }: StrictHttpOptions,
): void {
  // Node hides headers beyond a number from us, yet its parser obeys them: bounded by their size.
  server.maxHeadersCount = 0;
  const refuse = (
    request: IncomingMessage,
    response: ServerResponse,
    status: number,
    problem: string,
  ): void => {
    onRefused(request, problem);
    const { contentType, body } = render(request, problem);
    lingerAfterAnswer(request, response);
    const headers = { 'content-type': contentType, 'content-length': Buffer.byteLength(body) };
    response.writeHead(status, headers).end(body);
  };
  const admit =
    (awaitsContinue: boolean) =>
    (request: IncomingMessage, response: ServerResponse): void => {
      if (isAbandoned(request)) return;
      const problem = findFramingFault(request);
      if (problem === undefined) handle(request, response, awaitsContinue);
      else refuse(request, response, 400, problem);
    };
  server.on('request', admit(false));
  server.on('checkContinue', admit(true));
  server.on('checkExpectation', (request: IncomingMessage, response: ServerResponse) => {
    if (isAbandoned(request)) return;
    refuse(request, response, 417, 'the only expectation that is understood is 100-continue');
  });
}
