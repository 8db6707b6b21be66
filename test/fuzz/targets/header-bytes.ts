/*
 * Names and values of headers on their way through the system: whatever bytes they have, a head
 * has as many lines as it should, with the bytes that were given.
 */
import assert from 'node:assert';
import { IncomingMessage } from 'node:http';
import { Socket } from 'node:net';
import { endToEnd } from '../../../agent/network/egress/request-head.ts';
import { answerHeaders, requestHeaders } from '../../../agent/edge/ingress/forward-headers.ts';
import { readAttributes } from '../../../agent/edge/s3/http/attributes.ts';
import { headerOverrides } from '../../../agent/edge/s3/http/header-overrides.ts';
import { readHeaders } from '../../../agent/edge/s3/http/request-headers.ts';
import { readTarget } from '../../../agent/edge/s3/http/target.ts';
import { S3Error } from '../../../agent/edge/s3/protocol/errors.ts';
import { isHeaderName, isHeaderValue } from '../../../agent/edge/s3/protocol/raw-headers.ts';
import { decodeHeaders, encodeHeaders } from '../../../agent/edge/s3/store/stored-headers.ts';
import { ExactResponse } from '../../../shared/http/exact-response.ts';
import { endToEndHeaders } from '../../../shared/links/part-requests.ts';
import { type Refusal, type Target, unlessRefused } from '../target.ts';

const isS3Error: Refusal = (error) => error instanceof S3Error;

type Pair = readonly [name: string, value: string];

/** The headers among lines that Node's parser would deliver. */
const pairsOf = (lines: readonly string[]): Pair[] =>
  lines
    .map((line): Pair => {
      const colon = line.indexOf(':');
      return [line.slice(0, colon), line.slice(colon + 1).replaceAll(/^[\t ]+|[\t ]+$/gu, '')];
    })
    .filter(([name, value]) => isHeaderName(name) && isHeaderValue(value));

/** The bytes with which an answer with these headers begins, as lines without the first. */
function headLines(pairs: readonly Pair[]): string[] {
  const response = new ExactResponse(new IncomingMessage(new Socket()));
  response.sendDate = false;
  response.writeHead(200, [...pairs.flat(), 'Content-Length', '4']);
  response.end('body');
  const queued = Reflect.get(response, 'outputData') as {
    readonly data: string | Buffer;
    readonly encoding?: BufferEncoding;
  }[];
  const bytes = queued.map(({ data, encoding }) =>
    typeof data === 'string' ? Buffer.from(data, encoding) : data,
  );
  const [head = '', ...rest] = Buffer.concat(bytes).toString('latin1').split('\r\n\r\n');
  assert.deepStrictEqual(rest, ['body']);
  return head.split('\r\n').slice(1);
}

/** Headers that say something about the connection or the framing, which Node acts on. */
const OF_NODE = /^(?:connection|keep-alive|content-length|transfer-encoding|trailer|date)$/iu;

/** Asserts that an answer with these headers has exactly them. */
function mustLeaveAsGiven(headers: readonly Pair[]): void {
  const given = headers.filter(([name]) => !OF_NODE.test(name));
  const own = headLines(given).filter((line) => !OF_NODE.test(line.split(':')[0] ?? ''));
  assert.deepStrictEqual(
    own,
    given.map(([name, value]) => `${name}: ${value}`),
  );
}

const alternating = (raw: readonly string[]): Pair[] =>
  raw.flatMap((name, at): Pair[] => (at % 2 === 0 ? [[name, raw[at + 1] ?? '']] : []));

const WORDS = [
  ...['\n', ': ', 'content-disposition: ', 'x-amz-meta-a: ', 'expires: ', 'X_Forwarded_For: '],
  ...['č', 'Ċ', '%C4%8D', '%0D%0A', '%00', '%ff', '&', '=', '+', '%20'],
  ...['response-content-disposition=', 'response-content-type=', 'x-amz-meta-b=', 'aws-chunked'],
  ...['connection: ', 'close', 'set-cookie: a=b; Domain=', 'SBX.localhost', 'x-service-token: '],
];

/** The first line is a query, and each other one a header. */
const objectHeaders: Target = {
  name: 'object-headers',
  seeds: [
    'response-content-disposition=%C4%8D.txt&x-amz-meta-a=%C4%8A\nexpires: x\nx-amz-meta-b: é',
    'response-expires=%0D%0Ax\ncontent-disposition: č\ncontent-encoding: aws-chunked, gzip',
  ],
  words: WORDS,
  run(input) {
    const [query = '', ...lines] = input.toString('latin1').split('\n');
    const rawHeaders = pairsOf(lines).flat();
    const headers: Record<string, string> = {};
    for (const [name, value] of pairsOf(lines)) headers[name.toLowerCase()] = value;
    const target = unlessRefused(isS3Error, () => readTarget(`/dsk-0/key?${query}`));
    if (target === undefined) return;
    mustLeaveAsGiven(Object.entries(unlessRefused(isS3Error, () => headerOverrides(target)) ?? {}));
    unlessRefused(isS3Error, () => {
      const { values } = readHeaders({ headers, rawHeaders }, target.query);
      const { headers: kept = {} } = readAttributes({ headers: values });
      assert.deepStrictEqual(decodeHeaders(encodeHeaders(kept), 'latin1'), kept);
      mustLeaveAsGiven(Object.entries(kept));
    });
  },
};

const ZONE = 'sbx.localhost';
const CLIENT = { forwardedFor: '192.0.2.1', proto: 'https', host: 'a.test' };
const OF_HOP = /^(?:connection|keep-alive|proxy-.*|te|transfer-encoding|upgrade|http2-settings)$/iu;

const OF_INGRESS = /^(?:x-forwarded-.*|forwarded|x-service-token|x-archil-token)$/iu;

/** Each line is a header. */
const forwardedHeaders: Target = {
  name: 'forwarded-headers',
  seeds: [
    'content-disposition: č\nconnection: x-own\nx-own: Ċ\nX_Own: a',
    'set-cookie: a=b; Domain=sbx.localhost\nX-Forwarded-For: 192.0.2.2\nx-service-token: x',
  ],
  words: WORDS,
  run(input) {
    const pairs = pairsOf(input.toString('latin1').split('\n'));
    const rawHeaders = pairs.flat();
    const connection = pairs.filter(([name]) => name.toLowerCase() === 'connection');
    const headers =
      connection.length === 0
        ? {}
        : { connection: connection.map(([, value]) => value).join(', ') };
    const toGuest = alternating(requestHeaders({ rawHeaders, headers }, CLIENT));
    for (const [name] of toGuest.slice(0, -3)) {
      // The last three are the ingress's own.
      const read = name.replaceAll('_', '-');
      assert(!OF_INGRESS.test(read) && !OF_HOP.test(read), name);
    }
    for (const passed of [
      toGuest,
      alternating(answerHeaders(rawHeaders, ZONE)),
      endToEnd(rawHeaders),
      alternating(endToEndHeaders(rawHeaders)),
    ]) {
      mustLeaveAsGiven(passed);
      for (const [name] of passed) assert.doesNotMatch(name, OF_HOP);
    }
  },
};

export const headerTargets: readonly Target[] = [objectHeaders, forwardedHeaders];
