import { type IncomingMessage, type ServerResponse } from 'node:http';
import { pipeline } from 'node:stream';
import { runForConnection } from './connection-work.ts';
import { newDecoder } from './decoders.ts';
import { endToEnd, pairsOf, type RawHeader } from './request-head.ts';
import type { Secrets } from './secrets.ts';

/** Reason phrases (RFC 9112, 4); Node's parser takes others as well. */
const REASON = /^[\t\u0020-\u007e\u0080-\u00ff]*$/u;

export const redactHeaders = (headers: readonly RawHeader[], secrets: Secrets | undefined) =>
  secrets === undefined
    ? headers
    : headers.map(([name, value]): RawHeader => [secrets.redact(name), secrets.redact(value)]);

/**
 * Charsets in which ASCII has other bytes: of 16, 32 or 7 bits, and EBCDIC, by their names in the
 * registry of IANA.
 */
const WIDE_CHARSET =
  /^(?:cs)?(?:utf-?(?:7|16|32)|ucs-?[24]|unicode|iso-?10646|hz|scsu|bocu|ebcdic|(?:ibm|cp)-?0*(?:37|1026|1047|114\d|27[378]|28[0145]|290|297|42[0345]|500|87[01]|880|905|918|924))/u;

/** Whether a body says that it is in a charset in which secrets would not be found. */
const isWide = (headers: readonly RawHeader[]): boolean =>
  headers
    .filter(([name]) => name.toLowerCase() === 'content-type')
    .flatMap(([, value]) => [...value.toLowerCase().matchAll(/charset\s*=\s*["']?([^\s"';,]*)/gu)])
    .some(([, charset = '']) => WIDE_CHARSET.test(charset));

/** Whether the answer to a request with this method has a body (RFC 9112, 6.3). */
const hasBody = ({ statusCode = 0 }: IncomingMessage, method: string | undefined): boolean =>
  method !== 'HEAD' && statusCode !== 204 && statusCode !== 304;

/**
 * Begins the answer. Node's parser takes statuses and combinations of headers that it refuses to
 * write, and nobody would catch the exception.
 * @returns false when it cannot be begun; nothing was sent then
 */
function writeHead(
  response: ServerResponse,
  { statusCode = 0 }: IncomingMessage,
  reason: string,
  headers: readonly RawHeader[],
): boolean {
  if (statusCode < 200) return false;
  try {
    response.writeHead(statusCode, reason, headers.flat());
    return true;
  } catch {
    return false;
  }
}

/**
 * Passes a server's answer on to the guest, without the secrets that it may repeat.
 * @returns false when it cannot be passed on, or read and so not be searched; nothing was sent then
 */
export function sendAnswer(
  answer: IncomingMessage,
  response: ServerResponse,
  secrets: Secrets | undefined,
): boolean {
  const { method } = response.req;
  const coding = answer.headers['content-encoding']?.trim().toLowerCase() ?? 'identity';
  const mustSearch = secrets !== undefined && hasBody(answer, method);
  if (mustSearch && isWide(pairsOf(answer.rawHeaders))) return false;
  const mustDecode = mustSearch && coding !== 'identity';
  const decoder = mustDecode ? newDecoder(coding) : undefined;
  if (mustDecode && decoder === undefined) return false;
  const redactor = secrets?.newRedactor();
  const headers = redactHeaders(answerHeaders(answer, decoder !== undefined), secrets);
  const { statusMessage = '' } = answer;
  const reason = REASON.test(statusMessage) ? statusMessage : '';
  response.sendDate = false;
  if (!writeHead(response, answer, secrets?.redact(reason) ?? reason, headers)) {
    decoder?.destroy();
    return false;
  }
  answer.once('end', () => {
    const trailers = redactHeaders(pairsOf(answer.rawTrailers), secrets);
    if (trailers.length === 0) return;
    runForConnection(
      'egress.forward',
      () => response.destroy(),
      () => response.addTrailers(trailers.map(([name, value]): [string, string] => [name, value])),
    );
  });
  const stages = [decoder, redactor].filter((stage) => stage !== undefined);
  // With the beginning of the body, unless that is long in coming.
  setImmediate(() => {
    if (!response.writableEnded && !response.destroyed) response.flushHeaders();
  });
  pipeline([answer, ...stages, response], (error) => {
    if (error) response.destroy();
  });
  return true;
}

function answerHeaders(answer: IncomingMessage, isDecoded: boolean): RawHeader[] {
  const headers = endToEnd(answer.rawHeaders);
  if (isDecoded) return headers.filter(([name]) => name.toLowerCase() !== 'content-encoding');
  const length = answer.headers['content-length'];
  return length === undefined ? headers : [...headers, ['Content-Length', length]];
}
