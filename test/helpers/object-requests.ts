/* Requests to the object API as fast-check draws them, from harmless to hostile. */
import * as fc from './fast-check.ts';
import { ALLOWED } from './header-bytes.ts';

const escaped = fc.constantFrom(
  ...['%2e%2e', '..', '.', '%2F', '%00', '%ff', '%c3%28', '%E2%82', '%', '%zz', '%25', '+', ''],
  ...['a', 'dir', 'b', 'k'.repeat(300), 'contents', 'uploads', '%C3%BC', '%0d%0a', '\\', ';', '~'],
);
export const path = fc.array(escaped, { maxLength: 6 }).map((parts) => parts.join('/'));
const parameter = fc.constantFrom(
  ...['list-type=2', 'uploads', 'uploads=', 'delete=', 'append=true', 'uploadId=x', 'partNumber=1'],
  ...[
    'partNumber=0',
    'uploadId=',
    'prefix=%00',
    'prefix=../',
    'prefix=%ff',
    'delimiter=/',
    'max-keys=0',
  ],
  ...['delimiter=x', 'max-keys=-1', 'max-keys=99999999999', 'continuation-token=%00', 'marker=..'],
  ...['continuation-token=YQ', 'start-after=%ff', 'encoding-type=url', 'encoding-type=x', 'acl'],
  ...['versionId=1', 'location', 'versioning', 'tagging', '=', '&', '%', '%zz=1', 'key-marker=a'],
  ...['response-content-type=%0d%0aX:1', 'response-expires=x', 'X-Amz-Signature=x', 'max-parts=x'],
);
export const query = fc.array(parameter, { maxLength: 4 }).map((all) => all.join('&'));
export const header = fc.constantFrom(
  ...[
    'range: bytes=0-',
    'range: bytes=-0',
    'range: bytes=9-1',
    'range: bytes=0-0,0-0,1-2',
    'range: x',
  ],
  ...[
    'range: bytes=99999999999999999999-',
    'if-match: *',
    'if-none-match: *',
    'if-match: "x',
    'te: x',
  ],
  ...['if-modified-since: never', 'content-md5: x', 'content-md5: AAAAAAAAAAAAAAAAAAAAAA=='],
  ...[
    'x-amz-copy-source: /',
    'x-amz-copy-source: a/b',
    'x-amz-copy-source: %ff',
    'x-archil-uid: -1',
  ],
  ...['x-amz-copy-source-range: bytes=5-1', 'x-amz-checksum-crc32: x', 'x-amz-trailer: x'],
  ...[
    'x-archil-mode: 9',
    'x-archil-mode: 600',
    'x-amz-meta-a: b',
    'content-type: \u00fc',
    'expect: x',
  ],
  ...['x-amz-content-sha256: x', 'x-amz-metadata-directive: X', 'content-encoding: aws-chunked'],
  ...['x-amz-checksum-crc32: AAAAAA==', 'x-berth-proof: x', 'authorization: AWS4-HMAC-SHA256 x'],
);
const xml = fc.constantFrom(
  ...[
    '<Delete/>',
    '<Delete><Object><Key>../a</Key></Object></Delete>',
    '<Delete><Object/></Delete>',
  ],
  ...[
    '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><Delete><Object><Key>&b;</Key></Object>',
  ],
  ...[
    '<CompleteMultipartUpload/>',
    '<a'.repeat(500),
    '<a>'.repeat(500),
    '&#0;',
    ']]>',
    '\0',
    '\u00ff',
  ],
);
export const body = fc.oneof(
  fc.string({ maxLength: 50 }),
  fc.array(xml, { maxLength: 3 }).map((all) => all.join('')),
);
export const method = fc.constantFrom(
  ...[
    'GET',
    'HEAD',
    'PUT',
    'POST',
    'DELETE',
    'PATCH',
    'OPTIONS',
    'TRACE',
    'PROPFIND',
    'GET',
    'PUT',
  ],
);

/** Header values of any bytes, most of them harmless. */
const value = fc.oneof(
  fc.constantFrom(...['x', '', ' x ', 'a, b', '"x"', '0', '1', '-1', '*', 'bytes=0-1', '\t']),
  fc.constantFrom(...['\u00c4\u008dx.txt', '\u00e9.txt', 'attachment; filename="\u00c4\u008a"']),
  fc.string({ unit: fc.integer({ min: 1, max: 255 }).map((code) => String.fromCodePoint(code)) }),
);
const name = fc.constantFrom(
  ...['x-amz-meta-a', 'X-Amz-Meta-B', 'content-disposition', 'Cache-Control', 'expires', 'range'],
  ...['content-language', 'content-encoding', 'content-type', 'if-match', 'if-none-match'],
  ...['user-agent', 'cookie', 'origin', 'referer', 'forwarded', 'x-forwarded-for', 'via', 'date'],
  ...[
    'x-request-id',
    'x-own',
    'x_own',
    'te',
    'trailer',
    'upgrade',
    'keep-alive',
    'x-forwarded-host',
  ],
  ...['proxy-connection', 'proxy-authorization', 'http2-settings', 'x-berth-proof', 'expect'],
  ...[
    'x-amz-date',
    'x-amz-acl',
    'x-amz-copy-source',
    'content-md5',
    'traceparent',
    'x-http-method',
  ],
);
const anyHeader = fc.oneof(
  header,
  fc.tuple(name, value).map(([own, text]) => `${own}: ${text}`),
  fc.constantFrom(...['expect: 100-continue', 'x-amz-copy-source: /DISK/a', ' folded', 'no colon']),
);
const override = fc
  .tuple(
    fc.constantFrom(
      ...['content-type', 'content-language', 'expires', 'cache-control', 'content-disposition'],
      ...['content-encoding', 'unknown'],
    ),
    fc.oneof(value, fc.string({ unit: 'binary', maxLength: 5 })),
  )
  .map(([own, text]) => `response-${own}=${encodeURIComponent(text)}`);
const anyQuery = fc
  .array(fc.oneof(parameter, override), { maxLength: 3 })
  .map((all) => (all.length === 0 ? '' : `?${all.join('&')}`));
const target = fc.oneof(
  fc.tuple(fc.constantFrom('a', 'dir/b', 'new', ''), anyQuery).map((both) => both.join('')),
  fc.tuple(path, anyQuery).map((both) => both.join('')),
);

/** The end of a head, and the body that it announces. */
const framed = fc.oneof(
  { weight: 3, arbitrary: body.map((text) => `content-length: ${text.length}\r\n\r\n${text}`) },
  fc.constant('\r\n'),
  body.map((text) => `transfer-encoding: chunked\r\n\r\n${chunk(text)}0\r\n\r\n`),
  body.map((text) => `transfer-encoding: chunked\r\n\r\n${chunk(text)}0\r\nx-a: b\r\n\r\n`),
  fc.constantFrom(
    ...[
      'content-length: 1\r\ncontent-length: 1\r\n\r\nx',
      'content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n',
      'content-length: +1\r\n\r\nx',
      'transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n',
      'transfer-encoding: chunked\r\n\r\nzz\r\n',
      'transfer-encoding: chunked\r\n\r\n1;a=b\r\nx\r\n0\r\n\r\n',
    ],
  ),
);
const chunk = (text: string): string =>
  text === '' ? '' : `${text.length.toString(16)}\r\n${text}\r\n`;

interface Parts {
  readonly method: string;
  readonly target: string;
  readonly version: string;
  readonly headers: readonly string[];
  readonly credentials: string;
  /** The end of the head, and the body. */
  readonly framed: string;
}

/** Requests of which most have a fault. */
const wild: fc.Arbitrary<Parts> = fc.record({
  method,
  target: fc.oneof(
    { weight: 9, arbitrary: target.map((rest) => `/DISK/${rest}`) },
    anyQuery.map((rest) => `/DISK${rest}`),
    anyQuery.map((rest) => `/dsk-0123456789abcdef/a${rest}`),
  ),
  version: fc.constantFrom('1.1', '1.1', '1.1', '1.0'),
  headers: fc.array(anyHeader, { maxLength: 3 }),
  credentials: fc.constantFrom('authorization: KEY', 'authorization: KEY', 'x-none: x'),
  framed,
});

/** Bytes that a header value may have. */
const fineValue = fc
  .string({ unit: fc.constantFrom(...ALLOWED.split('')), maxLength: 20 })
  .map((text) => text.trim());
const storedName = fc.constantFrom(
  ...['x-amz-meta-a', 'X-Amz-Meta-B', 'Content-Disposition', 'cache-control', 'expires'],
  ...['content-language', 'content-encoding', 'user-agent', 'cookie', 'x-own', 'x_own', 'te'],
);
const key = fc.constantFrom('a', 'dir/b', 'new', '%C3%BC', 'a%20b', 'dir/');
const fineHeaders = (names: fc.Arbitrary<string>) =>
  fc
    .uniqueArray(fc.tuple(names, fineValue), { maxLength: 4, selector: ([own]) => own })
    .map((all) => all.map(([own, text]) => `${own}: ${text}`));
const fineRequest = { version: fc.constantFrom('1.1', '1.1', '1.0') };
const credentials = fc.constant('authorization: KEY');

/** Puts of objects whose headers have any bytes. */
const puts: fc.Arbitrary<Parts> = fc.record({
  ...{ ...fineRequest, credentials, target: key.map((own) => `/DISK/${own}`) },
  method: fc.constant('PUT'),
  headers: fineHeaders(storedName),
  framed: body.map((text) => `content-length: ${text.length}\r\n\r\n${text}`),
});

const fineOverride = fc
  .tuple(fc.constantFrom('content-type', 'content-disposition', 'expires'), fineValue)
  .map(([own, text]) => `response-${own}=${encodeURIComponent(text)}`);
const list = fc.constantFrom('list-type=2', 'list-type=2&max-keys=1', 'uploads', 'location', '');

/** Requests that read or delete. */
const reads: fc.Arbitrary<Parts> = fc.record({
  ...{ ...fineRequest, credentials },
  method: fc.constantFrom('GET', 'GET', 'HEAD', 'DELETE'),
  target: fc.oneof(
    { weight: 3, arbitrary: key.map((own) => `/DISK/${own}`) },
    { weight: 3, arbitrary: fc.tuple(key, fineOverride).map((both) => `/DISK/${both.join('?')}`) },
    list.map((own) => `/DISK?${own}`),
  ),
  headers: fc.array(
    fc.constantFrom(
      'range: bytes=0-0',
      'range: bytes=0-0,2-3',
      'range: bytes=99-',
      'x-own: \u00ff',
    ),
    { maxLength: 1 },
  ),
  framed: fc.constant('\r\n'),
});

/**
 * A request of one character a byte that is the last of its connection, for the object API of the
 * disk `DISK` with the API key `KEY`.
 */
export const comparedRequest = fc.oneof(wild, puts, reads).map((parts) => {
  const first = `${parts.method} ${parts.target} HTTP/${parts.version}`;
  const lines = ['host: test', 'connection: close', parts.credentials, ...parts.headers];
  return `${[first, ...lines].join('\r\n')}\r\n${parts.framed}`;
});
