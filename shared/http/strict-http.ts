import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import { isAbandoned, lingerAfterAnswer } from './early-answer.ts';
import { ExactResponse } from './exact-response.ts';
import { findFramingFault } from './http-framing.ts';

/**
 * Options for `createServer`: Node's strict parser, even if the environment asks for the lenient
 * one, and responses whose headers leave byte for byte.
 */
export const STRICT_HTTP = {
  ...{ insecureHTTPParser: false, requireHostHeader: true },
  ServerResponse: ExactResponse,
} as const;

/** @param awaitsContinue whether the client waits for 100 Continue (RFC 9110, section 10.1.1) */
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
  /** Renders a refusal. @param problem in words for the caller */
  readonly render: (request: IncomingMessage, problem: string) => Refusal;
  readonly onRefused: (request: IncomingMessage, problem: string) => void;
  /** See `findFramingFault`. */
  readonly anyMethodHasBody?: boolean;
}

/**
 * Serves only requests whose framing leaves no doubt where they end. Any other request is answered
 * with 400 or 417 before anything else sees it, and its connection is closed.
 */
export function serveStrictly(
  server: Server,
  { handle, render, onRefused, anyMethodHasBody = false }: StrictHttpOptions,
): void {
  // Node hides headers beyond a maximum number from us although its parser obeys them. So the
  // number is unlimited, and their total size is limited.
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
      const problem = findFramingFault(request, { anyMethodHasBody });
      if (problem === undefined) handle(request, response, awaitsContinue);
      else refuse(request, response, 400, problem);
    };
  server.on('request', admit(false));
  server.on('checkContinue', admit(true));
  server.on('checkExpectation', (request: IncomingMessage, response: ServerResponse) => {
    if (request.headers.expect?.trim() === '') admit(false)(request, response);
    else if (!isAbandoned(request)) {
      refuse(request, response, 417, 'the only supported expectation is 100-continue');
    }
  });
}
