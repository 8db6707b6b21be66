/*
 * Parts of object requests that have parsers of their own: signatures, chunks, documents, ranges.
 */
import assert from 'node:assert';
import type { IncomingMessage } from 'node:http';
import { Readable } from 'node:stream';
import { AwsChunkedDecoder } from '../../../agent/edge/s3/auth/aws-chunked.ts';
import { parseRanges } from '../../../agent/edge/s3/protocol/byte-ranges.ts';
import { S3Error } from '../../../agent/edge/s3/protocol/errors.ts';
import {
  parseCompleteMultipartUpload,
  parseDelete,
} from '../../../agent/edge/s3/http/request-documents.ts';
import { readFile } from '../../../agent/edge/s3/http/post-form.ts';
import { checkPolicy, readSignedForm } from '../../../agent/edge/s3/auth/post-policy.ts';
import { deriveSigningKey } from '../../../agent/edge/s3/auth/sigv4-key.ts';
import { readSignature, verifySignature } from '../../../agent/edge/s3/auth/sigv4.ts';
import { readTarget } from '../../../agent/edge/s3/http/target.ts';
import { EDGE_LIMITS } from '../../../agent/edge/limits.ts';
import { authorization, EMPTY_SHA256, EXAMPLE_TIME, SECRET } from '../../helpers/signing.ts';
import { cut, type Refusal, type Target, unlessRefused } from '../target.ts';

const isS3Error: Refusal = (error) => error instanceof S3Error;

/** GetObject of AWS's documentation. */
const SIGNED = [
  'GET /examplebucket/test.txt',
  'Host: examplebucket.s3.amazonaws.com',
  'Range: bytes=0-9',
  `x-amz-content-sha256: ${EMPTY_SHA256}`,
  'x-amz-date: 20130524T000000Z',
  `Authorization: ${authorization('host;range;x-amz-content-sha256;x-amz-date', 'f'.repeat(64))}`,
].join('\n');
const PRESIGNED = [
  'GET /test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524' +
    '%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400' +
    `&X-Amz-SignedHeaders=host&X-Amz-Signature=${'0'.repeat(64)}`,
  'Host: examplebucket.s3.amazonaws.com',
].join('\n');

const sigv4: Target = {
  name: 'sigv4',
  seeds: [SIGNED, PRESIGNED],
  words: [
    ...['AWS4-HMAC-SHA256', 'Credential=', 'SignedHeaders=', 'Signature=', 'aws4_request', '%2F'],
    ...['X-Amz-Expires=604801', 'X-Amz-Security-Token=x', '20130524T000000Z', 'UNSIGNED-PAYLOAD'],
    ...[
      'STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER',
      '\n',
      ': ',
      ';',
      '&',
      '=',
      '+',
      '%',
      '//',
      '..',
    ],
  ],
  run(input) {
    const [first = '', ...lines] = input.toString('latin1').split('\n');
    const [method = '', target = ''] = first.split(' ');
    const rawHeaders = lines.flatMap((line) => {
      const colon = line.indexOf(': ');
      return colon === -1 ? [line, ''] : [line.slice(0, colon), line.slice(colon + 2)];
    });
    unlessRefused(isS3Error, () => readTarget(target));
    unlessRefused(isS3Error, () => {
      const claim = readSignature({ method, target, rawHeaders }, EXAMPLE_TIME);
      if (claim === undefined) return;
      verifySignature(claim, deriveSigningKey(SECRET, claim.scope));
      assert.fail('a signature that nobody made was taken');
    });
  },
};

interface Decoded {
  readonly bytes: Buffer;
  readonly code: string;
}

async function decode(input: Buffer, pieceBytes: number, decodedBytes: number): Promise<Decoded> {
  const options = { decodedBytes, trailerNames: ['x-amz-checksum-crc32'], hasTrailer: true };
  const decoder = new AwsChunkedDecoder(options);
  const pieces: Buffer[] = [];
  try {
    for await (const piece of Readable.from(cut(input, pieceBytes)).compose(decoder)) {
      pieces.push(piece as Buffer);
    }
    return { bytes: Buffer.concat(pieces), code: 'ok' };
  } catch (error) {
    if (!(error instanceof S3Error)) throw error;
    return { bytes: Buffer.concat(pieces), code: error.code };
  }
}

const awsChunked: Target = {
  name: 'aws-chunked',
  seeds: ['5\r\nhello\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n', '0\r\n\r\n'],
  words: [
    '\r\n',
    '0\r\n',
    '5\r\n',
    'fffffffffffff\r\n',
    ';chunk-signature=',
    'x-amz-checksum-crc32:',
  ],
  async run(input) {
    const whole = await decode(input, Math.max(1, input.length), 5);
    const bytewise = await decode(input, 3, 5);
    assert.strictEqual(bytewise.code, whole.code);
    assert(whole.bytes.length <= 5);
    if (whole.code === 'ok') assert.deepStrictEqual([whole, whole.bytes.length], [bytewise, 5]);
  },
};

const FORM_FILE = '--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n';
const FORM_HEADERS = { headers: { 'content-type': 'multipart/form-data; boundary=x' } };

async function readForm(input: Buffer, pieceBytes: number): Promise<Decoded> {
  const pieces: Buffer[] = [];
  try {
    const request = FORM_HEADERS as IncomingMessage;
    for await (const piece of readFile(request, Readable.from(cut(input, pieceBytes)))) {
      pieces.push(piece);
    }
    return { bytes: Buffer.concat(pieces), code: 'ok' };
  } catch (error) {
    if (!(error instanceof S3Error)) throw error;
    return { bytes: Buffer.concat(pieces), code: error.code };
  }
}

const postForm: Target = {
  name: 'post-form',
  seeds: [
    `--x\r\nContent-Disposition: form-data; name="key"\r\n\r\na\r\n${FORM_FILE}hello\r\n--x--\r\n`,
    `${FORM_FILE}--x\r\n\r\n--x--`,
  ],
  words: [
    ...['--x', '--x--', '\r\n', '\r\n\r\n', 'Content-Disposition: form-data; ', 'name="file"'],
    ...['name="policy"', 'filename="', "filename*=UTF-8''%C4%8D", 'Content-Type: ', 'boundary=x'],
    ...['<Delete>', '</Delete>', 'Content-Transfer-Encoding: base64', '\0', '"', ';', '\u00e9'],
  ],
  async run(input) {
    const whole = await readForm(input, Math.max(1, input.length));
    const bytewise = await readForm(input, 3);
    for (const { code } of [whole, bytewise]) assert(['ok', 'MalformedPOSTRequest'].includes(code));
    // Parts behind the file are ignored, so their faults may be missed.
    if (whole.code !== 'ok' || bytewise.code !== 'ok') return;
    assert.deepStrictEqual(bytewise.bytes, whole.bytes);
  },
};

const POLICY = JSON.stringify({
  expiration: '2013-05-25T00:00:00Z',
  conditions: [
    { key: 'a' },
    ['starts-with', '$x-amz-date', '2013'],
    ['content-length-range', 0, 9],
  ],
});
const STRING_TO_SIGN = `AWS4-HMAC-SHA256\n20130524T000000Z\n20130524/us-east-1/s3/aws4_request\n${EMPTY_SHA256}`;

const postPolicy: Target = {
  name: 'post-policy',
  seeds: [Buffer.from(POLICY).toString('base64'), POLICY, STRING_TO_SIGN],
  words: [
    ...['expiration', 'conditions', 'starts-with', 'eq', '$key', 'content-length-range', '=', '=='],
    ...['AWS4-HMAC-SHA256', '\n', '{', '}', '[', ']', '"', '-', '_', '+', '/', '9'.repeat(16)],
  ],
  run(input) {
    // Mutations of the text and of the document within base64 both reach the parser.
    for (const policy of [input.toString('latin1'), input.toString('base64')]) {
      const fields = new Map([
        ...[['key', 'a'] as const, ['x-amz-algorithm', 'AWS4-HMAC-SHA256'] as const],
        ['x-amz-credential', 'AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request'],
        ...[['x-amz-date', '20130524T000000Z'] as const, ['policy', policy] as const],
        ['x-amz-signature', '0'.repeat(64)],
      ]);
      const form = { fields, fileName: '' };
      const signed = unlessRefused(isS3Error, () => readSignedForm(form, EXAMPLE_TIME));
      if (signed === undefined) continue;
      // A policy is never the text that another kind of request is signed with.
      assert(!/[^A-Za-z0-9+/=]/u.test(signed.claim.stringToSign));
      const [min, max] = signed.policy.lengthRange ?? [0, 0];
      assert(Number.isSafeInteger(min) && Number.isSafeInteger(max));
      unlessRefused(isS3Error, () => checkPolicy(signed.policy, fields));
    }
  },
};

const xml: Target = {
  name: 'xml',
  seeds: [
    '<Delete><Object><Key>a</Key></Object><Quiet>true</Quiet></Delete>',
    '<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>"a"</ETag></Part></CompleteMultipartUpload>',
    '<?xml version="1.0" encoding="UTF-8"?><Delete xmlns="x"><Object><Key>&amp;&#x41;</Key></Object></Delete>',
  ],
  words: [
    ...['<Delete>', '</Delete>', '<Object>', '</Object>', '<Key>', '</Key>', '<Part>', '</Part>'],
    ...[
      '<PartNumber>',
      '<ETag>',
      '<![CDATA[',
      ']]>',
      '<!--',
      '-->',
      '<!DOCTYPE a [',
      '<!ENTITY b "c">',
    ],
    ...[
      '&b;',
      '&#0;',
      '&#x110000;',
      '&lt;',
      '__proto__',
      'constructor',
      '<a>',
      '</a>',
      '<a/>',
      '<?a?>',
    ],
  ],
  run(input) {
    const found = unlessRefused(isS3Error, () => parseDelete(input));
    for (const { key } of found?.objects ?? []) assert.strictEqual(typeof key, 'string');
    assert((found?.objects.length ?? 0) <= EDGE_LIMITS.keysPerDeleteMax);
    const parts = unlessRefused(isS3Error, () => parseCompleteMultipartUpload(input)) ?? [];
    assert(parts.length <= EDGE_LIMITS.partsPerUploadMax);
    for (const { partNumber, etag } of parts) {
      assert(Number.isInteger(partNumber));
      assert.strictEqual(typeof etag, 'string');
    }
  },
};

const ranges: Target = {
  name: 'ranges',
  seeds: ['bytes=0-9', 'bytes=-5', 'bytes=5-', 'bytes=0-0,2-3, 7-'],
  words: ['bytes=', '-', ',', ' ', '0', '9', '99999999999999999999', 'BYTES=', '\t'],
  run(input) {
    const text = input.toString('latin1');
    for (const size of [0, 1, 10, Number.MAX_SAFE_INTEGER]) {
      const found = parseRanges(text, size) ?? [];
      assert(found.length <= EDGE_LIMITS.rangesMax);
      for (const { start, end } of found) {
        assert(Number.isSafeInteger(start) && Number.isSafeInteger(end));
        assert(start >= 0 && start <= end && end < size);
      }
    }
  },
};

export const objectRequestTargets: readonly Target[] = [
  ...[sigv4, awsChunked, postForm, postPolicy, xml, ranges],
];
