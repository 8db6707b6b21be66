import { type IncomingMessage, type ServerResponse } from 'node:http';
import { pipeline, type Transform } from 'node:stream';
import {
  createBrotliDecompress,
  createGunzip,
  createInflate,
  createZstdDecompress,
} from 'node:zlib';
import { endToEnd, pairsOf, type RawHeader } from './request-head.ts';
import type { Secrets } from './secrets.ts';

const DECODERS: Readonly<Record<string, () => Transform>> = {
  gzip: createGunzip,
  'x-gzip': createGunzip,
  deflate: createInflate,
  br: createBrotliDecompress,
  zstd: createZstdDecompress,
};

export const redactHeaders = (headers: readonly RawHeader[], secrets: Secrets | undefined) =>
  secrets === undefined
    ? headers
    : headers.map(([name, value]): RawHeader => [secrets.redact(name), secrets.redact(value)]);

/** Whether the answer to a request with this method has a body (RFC 9112, 6.3). */
const hasBody = ({ statusCode = 0 }: IncomingMessage, method: string | undefined): boolean =>
  method !== 'HEAD' && statusCode !== 204 && statusCode !== 304;

/**
 * Passes a server's answer on to the guest, without the secrets that it may repeat.
 * @returns false when it cannot be read and so not be searched; nothing was sent then
 */
export function sendAnswer(
  answer: IncomingMessage,
  response: ServerResponse,
  secrets: Secrets | undefined,
): boolean {
  const { method } = response.req;
  const coding = answer.headers['content-encoding']?.trim().toLowerCase() ?? 'identity';
  const mustDecode = secrets !== undefined && coding !== 'identity' && hasBody(answer, method);
  const decoder = mustDecode ? DECODERS[coding]?.() : undefined;
  if (mustDecode && decoder === undefined) return false;
  const redactor = secrets?.newRedactor();
  const headers = redactHeaders(answerHeaders(answer, decoder !== undefined), secrets);
  const reason = answer.statusMessage ?? '';
  response.sendDate = false;
  response.writeHead(answer.statusCode ?? 502, secrets?.redact(reason) ?? reason, headers.flat());
  answer.once('end', () => {
    const trailers = redactHeaders(pairsOf(answer.rawTrailers), secrets);
    if (trailers.length > 0)
      response.addTrailers(trailers.map(([name, value]): [string, string] => [name, value]));
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
