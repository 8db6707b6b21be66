import { createHash, createSecretKey } from 'node:crypto';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import test from 'ava';
import * as fc from '../../../../helpers/fast-check.ts';
import {
  AwsChunkedDecoder,
  readDecodedLength,
  type AwsChunkedOptions,
} from '../../../../../agent/edge/s3/auth/aws-chunked.ts';
import { S3Error } from '../../../../../agent/edge/s3/protocol/errors.ts';
import { hmac } from '../../../../../agent/edge/s3/auth/sigv4-key.ts';
import type { VerifiedSignature } from '../../../../../agent/edge/s3/auth/sigv4.ts';
import { authorization, EMPTY_SHA256, verify } from '../../../../helpers/signing.ts';
import { unicodeText } from '../../../../helpers/unicode-text.ts';

/*
 * The examples are those of "Signature Calculations for the Authorization Header: Transferring
 * Payload in Multiple Chunks", without and with trailing headers, of the S3 API reference.
 */

const BODY = Buffer.alloc(66_560, 'a');

function exampleRequest(trailer: boolean): VerifiedSignature {
  const names = [
    ...['content-encoding', 'content-length', 'host', 'x-amz-content-sha256', 'x-amz-date'],
    ...['x-amz-decoded-content-length', 'x-amz-storage-class'],
  ];
  const payload = 'STREAMING-AWS4-HMAC-SHA256-PAYLOAD';
  const signature = trailer
    ? '106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e'
    : '4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9';
  if (trailer) {
    names.splice(1, 1);
    names.push('x-amz-trailer');
  }
  return verify({
    method: 'PUT',
    target: '/examplebucket/chunkObject.txt',
    rawHeaders: [
      ...['Host', 's3.amazonaws.com', 'x-amz-date', '20130524T000000Z'],
      ...['x-amz-storage-class', 'REDUCED_REDUNDANCY'],
      ...['Authorization', authorization(names.join(';'), signature)],
      ...['x-amz-content-sha256', trailer ? `${payload}-TRAILER` : payload],
      ...['Content-Encoding', 'aws-chunked', 'x-amz-decoded-content-length', '66560'],
      ...(trailer ? ['x-amz-trailer', 'x-amz-checksum-crc32c'] : ['Content-Length', '66824']),
    ],
  });
}

interface Outcome {
  readonly code: string;
  readonly bytes: Buffer;
  readonly trailers: Record<string, string>;
}

async function decode(parts: readonly Buffer[], options: AwsChunkedOptions): Promise<Outcome> {
  const decoder = new AwsChunkedDecoder(options);
  const taken: Buffer[] = [];
  let code = 'ok';
  try {
    await pipeline(Readable.from(parts), decoder, async (source) => {
      for await (const chunk of source) taken.push(chunk as Buffer);
    });
  } catch (error) {
    if (!(error instanceof S3Error)) throw error;
    code = error.code;
  }
  const trailers = Object.fromEntries(decoder.trailers);
  return { code, bytes: Buffer.concat(taken), trailers };
}

const chunk = (data: Buffer, signature?: string): Buffer => {
  const extension = signature === undefined ? '' : `;chunk-signature=${signature}`;
  const head = Buffer.from(`${data.length.toString(16)}${extension}\r\n`);
  return Buffer.concat([head, data, Buffer.from(data.length === 0 ? '' : '\r\n')]);
};

test('AWS example: signed chunks', async (t) => {
  const signature = exampleRequest(false);
  t.deepEqual(signature.payload, { kind: 'aws-chunked', signed: true, trailer: false });
  const body = Buffer.concat([
    chunk(
      BODY.subarray(0, 65_536),
      'ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648',
    ),
    chunk(
      BODY.subarray(65_536),
      '0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497',
    ),
    chunk(Buffer.alloc(0), 'b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9'),
    Buffer.from('\r\n'),
  ]);
  t.is(body.length, 66_824);
  const options = { decodedBytes: 66_560, trailerNames: [], hasTrailer: false, signature };
  t.deepEqual(await decode([body], options), { code: 'ok', bytes: BODY, trailers: {} });
  for (const at of [70, 90, 66_000, 66_800]) {
    const changed = Buffer.from(body);
    changed[at] = changed[at] === 0x61 ? 0x62 : 0x61;
    t.is((await decode([changed], options)).code, 'SignatureDoesNotMatch', String(at));
  }
});

for (const separator of ['\r\n', '\n\r\n']) {
  test(`AWS example: signed chunks and trailer, ended by ${JSON.stringify(separator)}`, async (t) => {
    const signature = exampleRequest(true);
    const trailer = Buffer.from(
      `x-amz-checksum-crc32c:sOO8/Q==${separator}x-amz-trailer-signature:` +
        'd81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n\r\n',
    );
    const body = Buffer.concat([
      chunk(
        BODY.subarray(0, 65_536),
        'b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2',
      ),
      chunk(
        BODY.subarray(65_536),
        '1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7',
      ),
      chunk(Buffer.alloc(0), '2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992'),
      trailer,
    ]);
    const trailerNames = ['x-amz-checksum-crc32c'];
    const options = { decodedBytes: 66_560, trailerNames, hasTrailer: true, signature };
    t.deepEqual(await decode([body], options), {
      code: 'ok',
      bytes: BODY,
      trailers: { 'x-amz-checksum-crc32c': 'sOO8/Q==' },
    });
    const changed = Buffer.from(body.toString('latin1').replace('sOO8', 'sOO9'), 'latin1');
    t.is((await decode([changed], options)).code, 'SignatureDoesNotMatch');
    const unsigned = body.subarray(0, body.indexOf('x-amz-trailer-signature'));
    const ended = Buffer.concat([unsigned, Buffer.from('\r\n')]);
    t.is((await decode([ended], options)).code, 'IncompleteBody');
  });
}

const seed: VerifiedSignature = {
  ...{ accessKeyId: 'a', timestamp: '20130524T000000Z', signedHeaders: [], stringToSign: '' },
  scope: { date: '20130524', region: 'r', text: '20130524/r/s3/aws4_request' },
  payload: { kind: 'aws-chunked', signed: true, trailer: true },
  signature: '0'.repeat(64),
  signingKey: createSecretKey(Buffer.from('key')),
};
const TRAILER_NAME = 'x-amz-checksum-crc32';
const sha256 = (bytes: Buffer | string): string => createHash('sha256').update(bytes).digest('hex');

function sign(algorithm: string, previous: string, ...hashes: string[]): string {
  const lines = [algorithm, seed.timestamp, seed.scope.text, previous, ...hashes];
  return hmac(seed.signingKey, lines.join('\n')).toString('hex');
}

/** A whole body of chunks, as a client makes it. */
function encode(chunks: readonly Buffer[], isSigned: boolean, trailer?: string): Buffer {
  let previous = seed.signature;
  const encoded = [...chunks, Buffer.alloc(0)].map((data) => {
    if (!isSigned) return chunk(data);
    previous = sign('AWS4-HMAC-SHA256-PAYLOAD', previous, EMPTY_SHA256, sha256(data));
    return chunk(data, previous);
  });
  if (trailer !== undefined) {
    encoded.push(Buffer.from(`${TRAILER_NAME}:${trailer}\r\n`));
    const hash = sha256(`${TRAILER_NAME}:${trailer}\n`);
    const signature = sign('AWS4-HMAC-SHA256-TRAILER', previous, hash);
    if (isSigned) encoded.push(Buffer.from(`x-amz-trailer-signature:${signature}\r\n`));
  }
  return Buffer.concat([...encoded, Buffer.from('\r\n')]);
}

/** The bytes in pieces that end at the given places. */
function splitAt(bytes: Buffer, places: readonly number[]): Buffer[] {
  const ends = [...new Set(places.map((place) => place % (bytes.length + 1)))];
  const all = [0, ...ends.sort((a, b) => a - b), bytes.length];
  return all.slice(1).map((end, index) => bytes.subarray(all[index], end));
}

const data = fc.uint8Array({ minLength: 1, maxLength: 300 }).map((bytes) => Buffer.from(bytes));
const splits = fc.array(fc.nat(), { maxLength: 30 });

test('any split of the input gives the same bytes, trailers and errors', async (t) => {
  const change = fc.option(fc.tuple(fc.nat(), fc.nat({ max: 255 })));
  const property = fc.asyncProperty(
    ...[fc.array(data, { maxLength: 4 }), fc.boolean(), fc.boolean(), splits, change],
    async (chunks, isSigned, hasTrailer, places, changed) => {
      const body = encode(chunks, isSigned, hasTrailer ? 'AAAAAA==' : undefined);
      const plain = Buffer.concat(chunks);
      const options = {
        decodedBytes: plain.length,
        trailerNames: hasTrailer ? [TRAILER_NAME] : [],
        hasTrailer,
        signature: isSigned ? seed : undefined,
      };
      if (changed !== null) body[changed[0] % body.length] = changed[1];
      const whole = await decode([body], options);
      if (changed === null) {
        const trailers = hasTrailer ? { [TRAILER_NAME]: 'AAAAAA==' } : {};
        t.deepEqual(whole, { code: 'ok', bytes: plain, trailers });
      }
      const pieces = await decode(splitAt(body, places), options);
      t.is(pieces.code, whole.code);
      if (whole.code === 'ok') t.deepEqual(pieces, whole);
    },
  );
  await fc.assert(property, { numRuns: 300 });
});

const refuses = test.macro({
  async exec(t, _what: string, code: string, body: string, options?: Partial<AwsChunkedOptions>) {
    const all = { decodedBytes: 3, trailerNames: [], hasTrailer: true, ...options };
    t.is((await decode([Buffer.from(body)], all)).code, code);
  },
  title: (_given, what: string, code: string) => `${code}: ${what}`,
});

test(refuses, 'unsigned chunks', 'ok', '3\r\nabc\r\n0\r\n\r\n');
test(refuses, 'leading zeros, upper case', 'ok', '003\r\nabc\r\n000\r\n\r\n');
test(refuses, 'nothing', 'IncompleteBody', '');
test(refuses, 'no last chunk', 'IncompleteBody', '3\r\nabc\r\n');
test(refuses, 'no end', 'IncompleteBody', '3\r\nabc\r\n0\r\n');
test(refuses, 'cut off in a chunk', 'IncompleteBody', '3\r\nab');
test(refuses, 'shorter than announced', 'IncompleteBody', '2\r\nab\r\n0\r\n\r\n');
test(refuses, 'longer than announced', 'IncompleteBody', '2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n');
test(refuses, 'much longer', 'IncompleteBody', 'fffffffffffff\r\n');
test(refuses, 'size with too many digits', 'InvalidRequest', '00000000000003\r\nabc\r\n0\r\n\r\n');
test(refuses, 'size is no number', 'InvalidRequest', '0x3\r\nabc\r\n0\r\n\r\n');
test(refuses, 'size is negative', 'InvalidRequest', '-3\r\nabc\r\n0\r\n\r\n');
test(refuses, 'no line end after the size', 'InvalidRequest', '3'.repeat(1000));
test(refuses, 'bare line feed', 'InvalidRequest', '3\nabc\r\n0\r\n\r\n');
test(refuses, 'chunk longer than its size', 'InvalidRequest', '3\r\nabcd\r\n0\r\n\r\n');
test(refuses, 'bytes after the end', 'InvalidRequest', '3\r\nabc\r\n0\r\n\r\nx');
test(
  refuses,
  'signature where none is due',
  'InvalidRequest',
  `3;chunk-signature=${'0'.repeat(64)}\r\n`,
);
test(refuses, 'signature missing', 'InvalidRequest', '3\r\nabc\r\n', { signature: seed });
test(
  refuses,
  'signature of zeros',
  'SignatureDoesNotMatch',
  `3;chunk-signature=${'0'.repeat(64)}\r\nabc\r\n`,
  { signature: seed },
);
const head = '3\r\nabc\r\n0\r\n';
const trailerNames = [TRAILER_NAME];
test(refuses, 'trailer not announced', 'MalformedTrailerError', `${head}x-a:1\r\n\r\n`);
test(refuses, 'trailer missing', 'MalformedTrailerError', `${head}\r\n`, { trailerNames });
test(
  refuses,
  'trailer twice',
  'MalformedTrailerError',
  `${head}${`${TRAILER_NAME}:1\r\n`.repeat(2)}\r\n`,
  { trailerNames },
);
test(refuses, 'trailer without colon', 'MalformedTrailerError', `${head}${TRAILER_NAME}\r\n\r\n`, {
  trailerNames,
});
test(refuses, 'endless trailer', 'InvalidRequest', `${head}${TRAILER_NAME}:${'1'.repeat(2000)}`, {
  trailerNames,
});

test('chunks may not change places, be left out or come twice', async (t) => {
  const parts = ['aa', 'bb', 'cc'].map((text) => Buffer.from(text));
  const body = encode(parts, true).toString('latin1');
  const [a = '', b = '', c = '', ...rest] = body.split(/(?<=\r\n)(?=[0-9]+;)/);
  const options = { decodedBytes: 6, trailerNames: [], hasTrailer: false, signature: seed };
  const code = async (text: string) => (await decode([Buffer.from(text)], options)).code;
  t.is(await code(body), 'ok');
  t.is(await code([b, a, c, ...rest].join('')), 'SignatureDoesNotMatch');
  t.is(await code([a, a, c, ...rest].join('')), 'SignatureDoesNotMatch');
  t.is(await code([a, c, c, ...rest].join('')), 'SignatureDoesNotMatch');
});

test('the decoded length must be a number', (t) => {
  t.is(readDecodedLength('66560'), 66_560);
  t.throws(() => readDecodedLength(undefined), { instanceOf: S3Error });
  for (const wrong of ['', '-1', '1e3', '9'.repeat(16)]) {
    t.throws(() => readDecodedLength(wrong), { instanceOf: S3Error });
  }
});

test('garbage gives no error of another kind', async (t) => {
  const piece = fc.oneof(
    fc.constantFrom('3\r\nabc\r\n', '0\r\n', '\r\n', ';chunk-signature=', '\n', ':', TRAILER_NAME),
    unicodeText(),
  );
  const property = fc.asyncProperty(fc.array(piece), fc.boolean(), async (pieces, isSigned) => {
    const options = { decodedBytes: 6, trailerNames, hasTrailer: true };
    const parts = pieces.map((text) => Buffer.from(text));
    await decode(parts, { ...options, signature: isSigned ? seed : undefined });
  });
  await fc.assert(property, { numRuns: 500 });
  t.pass();
});
