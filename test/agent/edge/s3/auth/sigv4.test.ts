import { createHash } from 'node:crypto';
import test from 'ava';
import * as fc from '../../../../helpers/fast-check.ts';
import type { RequestHead } from '../../../../../agent/edge/s3/auth/canonical-request.ts';
import { S3Error } from '../../../../../agent/edge/s3/protocol/errors.ts';
import { readSignature } from '../../../../../agent/edge/s3/auth/sigv4.ts';
import {
  ACCESS_KEY_ID,
  authorization,
  EMPTY_SHA256,
  EXAMPLE_TIME,
  outcome,
  SECRET,
  signCanonical,
  verify,
} from '../../../../helpers/signing.ts';

/*
 * The examples are those of "Signature Calculations for the Authorization Header" and
 * "Authenticating Requests: Using Query Parameters" of the S3 API reference.
 */

const HOST = ['Host', 'examplebucket.s3.amazonaws.com'] as const;
const DATE = ['x-amz-date', '20130524T000000Z'] as const;
const EMPTY = ['x-amz-content-sha256', EMPTY_SHA256] as const;
const SIGNED = 'host;x-amz-content-sha256;x-amz-date';
const MINUTE_MS = 60_000;

const getObject: RequestHead = {
  method: 'GET',
  target: '/test.txt',
  rawHeaders: [
    ...HOST,
    ...[
      'Authorization',
      authorization(
        'host;range;x-amz-content-sha256;x-amz-date',
        'f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41',
      ),
    ],
    ...['Range', 'bytes=0-9'],
    ...EMPTY,
    ...DATE,
  ],
};

const PRESIGNED =
  '/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256' +
  `&X-Amz-Credential=${ACCESS_KEY_ID}%2F20130524%2Fus-east-1%2Fs3%2Faws4_request` +
  '&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host' +
  '&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404';

const presigned = (target: string, ...headers: string[]): RequestHead => ({
  method: 'GET',
  target,
  rawHeaders: [...HOST, ...headers],
});

/** A GET signed from a canonical request that the test writes itself. */
function signedGet(target: string, path: string, query: string): RequestHead {
  const headers = `host:${HOST[1]}\nx-amz-content-sha256:${EMPTY[1]}\nx-amz-date:${DATE[1]}\n`;
  const signature = signCanonical(['GET', path, query, headers, SIGNED, EMPTY_SHA256]);
  const rawHeaders = [...HOST, ...EMPTY, ...DATE];
  return {
    method: 'GET',
    target,
    rawHeaders: [...rawHeaders, 'authorization', authorization(SIGNED, signature)],
  };
}

test('AWS example: GET Object', (t) => {
  const verified = verify(getObject);
  t.is(verified.accessKeyId, ACCESS_KEY_ID);
  t.deepEqual(verified.scope, {
    date: '20130524',
    region: 'us-east-1',
    text: '20130524/us-east-1/s3/aws4_request',
  });
  t.deepEqual(verified.payload, { kind: 'sha256', sha256: EMPTY_SHA256 });
  t.deepEqual(verified.signedHeaders, ['host', 'range', 'x-amz-content-sha256', 'x-amz-date']);
});

test('AWS example: PUT Object', (t) => {
  const sha256 = createHash('sha256').update('Welcome to Amazon S3.').digest('hex');
  const signature = '98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd';
  const rawHeaders = [
    ...HOST,
    ...['Date', 'Fri, 24 May 2013 00:00:00 GMT'],
    ...['Authorization', authorization(`date;${SIGNED};x-amz-storage-class`, signature)],
    ...DATE,
    ...['x-amz-storage-class', 'REDUCED_REDUNDANCY', 'x-amz-content-sha256', sha256],
  ];
  const head = { method: 'PUT', target: '/test$file.text', rawHeaders };
  t.deepEqual(verify(head).payload, { kind: 'sha256', sha256 });
  t.is(outcome({ ...head, target: '/test%24file.text' }), 'ok');
});

for (const [target, signature] of [
  ['/?lifecycle', 'fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543'],
  ['/?max-keys=2&prefix=J', '34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7'],
] as const) {
  test(`AWS example: GET ${target}`, (t) => {
    const rawHeaders = [...HOST, ...DATE, ...EMPTY];
    rawHeaders.push('Authorization', authorization(SIGNED, signature));
    t.is(outcome({ method: 'GET', target, rawHeaders }), 'ok');
  });
}

test('AWS example: presigned GET', (t) => {
  const verified = verify(presigned(PRESIGNED));
  t.deepEqual(verified.payload, { kind: 'unsigned' });
  t.is(verified.scope.region, 'us-east-1');
});

test('any change breaks the signature', (t) => {
  const changed = (change: Partial<RequestHead>): string => outcome({ ...getObject, ...change });
  const headers = (from: string, to: string): string[] =>
    getObject.rawHeaders.map((text) => text.replace(from, to));
  const wrong = 'SignatureDoesNotMatch';
  t.is(outcome(getObject), 'ok');
  t.is(changed({ method: 'PUT' }), wrong);
  t.is(changed({ target: '/test.tx' }), wrong);
  t.is(changed({ target: '/test.txt?a' }), wrong);
  t.is(changed({ target: '//test.txt' }), wrong);
  t.is(changed({ target: '/./test.txt' }), wrong);
  t.is(changed({ rawHeaders: headers('bytes=0-9', 'bytes=0-8') }), wrong);
  t.is(changed({ rawHeaders: headers('examplebucket.s3', 'otherbucket.s3') }), wrong);
  t.is(changed({ rawHeaders: headers('Range', 'Ranges') }), wrong);
  t.is(changed({ rawHeaders: headers('us-east-1', 'us-east-2') }), wrong);
  t.is(changed({ rawHeaders: headers('T000000Z', 'T000001Z') }), wrong);
  t.is(changed({ rawHeaders: headers(EMPTY_SHA256, 'UNSIGNED-PAYLOAD') }), wrong);
  t.is(changed({ rawHeaders: [...getObject.rawHeaders, 'range', 'bytes=1-2'] }), wrong);
  t.is(outcome(getObject, EXAMPLE_TIME, 'another'), wrong);
  t.is(outcome(presigned(PRESIGNED.replace('86400', '86401'))), wrong);
  t.is(outcome(presigned(`${PRESIGNED}&versionId=1`)), wrong);
});

test('paths verify with whatever a client escapes, encoded once and not normalised', (t) => {
  const canonical = '/b/a%20b%21%27%28%29%2A%2B~%C3%A9//%E2%82%AC/../%25x';
  for (const target of [
    canonical,
    "/b/a%20b!'()*+~%c3%a9//%e2%82%ac/../%25x",
    '/b/%61%20b%21%27%28%29%2a%2b%7E%C3%A9/%2F%E2%82%AC/%2e./%25x',
    "/b/a%20b!'()*+~\u00c3\u00a9//%E2%82%AC/../%25x",
  ]) {
    t.is(outcome(signedGet(target, canonical, '')), 'ok', target);
  }
});

test('queries are sorted by name and then value, in their escaped form', (t) => {
  const canonical = 'a=1&a=2&a-b=&k%2Fl=x%20y%2Bz&prefix=%C3%A9%3D%3D&uploads=';
  for (const query of [
    canonical,
    'uploads&prefix=%c3%a9==&k/l=x+y%2bz&a-b&a=2&a=1',
    'uploads=&&a=1&k%2fl=x%20y%2Bz&a-b=&a=2&prefix=%C3%A9%3d=',
  ]) {
    t.is(outcome(signedGet(`/b?${query}`, '/b', canonical)), 'ok', query);
  }
});

test('header values are trimmed, collapsed and joined, and are bytes', (t) => {
  const utf8 = Buffer.from('\u00e0 b').toString('latin1');
  const headers = `host:h\nx-amz-content-sha256:UNSIGNED-PAYLOAD\nx-amz-date:${DATE[1]}\nx-amz-meta-a:a b,${utf8}\n`;
  const signed = `${SIGNED};x-amz-meta-a`;
  const signature = signCanonical(['PUT', '/b/k', '', headers, signed, 'UNSIGNED-PAYLOAD']);
  const rawHeaders = [
    ...['X-Amz-Meta-A', '  a \t b ', 'host', 'h', ...DATE],
    ...['x-amz-meta-a', utf8, 'x-amz-content-sha256', 'UNSIGNED-PAYLOAD'],
    ...['authorization', authorization(signed, signature)],
  ];
  t.is(outcome({ method: 'PUT', target: '/b/k', rawHeaders }), 'ok');
});

test('any region is accepted, and an access key id with slashes', (t) => {
  const headers = `host:h\nx-amz-content-sha256:${EMPTY_SHA256}\nx-amz-date:${DATE[1]}\n`;
  const lines = ['GET', '/', '', headers, SIGNED, EMPTY_SHA256];
  const signature = signCanonical(lines, DATE[1], 'eu-home_1');
  const credential = 'a/b/20130524/eu-home_1/s3/aws4_request';
  const rawHeaders = ['host', 'h', ...EMPTY, ...DATE];
  rawHeaders.push('authorization', authorization(SIGNED, signature, credential));
  t.is(verify({ method: 'GET', target: '/', rawHeaders }).accessKeyId, 'a/b');
});

test('the Date header serves where x-amz-date is missing', (t) => {
  const headers = `date:Fri, 24 May 2013 00:00:00 GMT\nhost:h\nx-amz-content-sha256:${EMPTY_SHA256}\n`;
  const signed = 'date;host;x-amz-content-sha256';
  const signature = signCanonical(['GET', '/', '', headers, signed, EMPTY_SHA256]);
  const rawHeaders = ['host', 'h', ...EMPTY, 'date', 'Fri, 24 May 2013 00:00:00 GMT'];
  rawHeaders.push('authorization', authorization(signed, signature));
  t.is(verify({ method: 'GET', target: '/', rawHeaders }).timestamp, DATE[1]);
});

test('a signature in the header is good for a quarter of an hour to both sides', (t) => {
  t.is(outcome(getObject, EXAMPLE_TIME + 15 * MINUTE_MS), 'ok');
  t.is(outcome(getObject, EXAMPLE_TIME - 15 * MINUTE_MS), 'ok');
  t.is(outcome(getObject, EXAMPLE_TIME + 15 * MINUTE_MS + 1), 'RequestTimeTooSkewed');
  t.is(outcome(getObject, EXAMPLE_TIME - 15 * MINUTE_MS - 1), 'RequestTimeTooSkewed');
});

const presignedAt = (ms: number): string => outcome(presigned(PRESIGNED), EXAMPLE_TIME + ms);

test('a presigned URL is good from a quarter of an hour before its date until it expires', (t) => {
  t.is(presignedAt(86_400_000), 'ok');
  t.is(presignedAt(-15 * MINUTE_MS), 'ok');
  t.is(presignedAt(86_400_001), 'AccessDenied');
  t.is(presignedAt(-15 * MINUTE_MS - 1), 'AccessDenied');
  t.throws(() => verify(presigned(PRESIGNED), EXAMPLE_TIME + 86_400_001), {
    message: 'Request has expired',
  });
});

const plain = (...rawHeaders: string[]): RequestHead => ({
  method: 'GET',
  target: '/b/k?X-Amz-Meta=1',
  rawHeaders,
});

test('requests that are not signed with SigV4 are left to others', (t) => {
  t.is(readSignature(plain(...HOST), EXAMPLE_TIME), undefined);
  t.is(readSignature(plain(...HOST, 'authorization', 'Bearer key-1'), EXAMPLE_TIME), undefined);
  t.is(readSignature(plain(...HOST, 'authorization', 'key-1'), EXAMPLE_TIME), undefined);
});

const refuses = test.macro({
  exec(t, _what: string, code: string, head: RequestHead) {
    t.is(outcome(head), code);
  },
  title: (_given, what: string, code: string) => `${code}: ${what}`,
});

/** The GET example with another Authorization header. */
const withAuthorization = (value: string): RequestHead => ({
  ...getObject,
  rawHeaders: [...HOST, ...EMPTY, ...DATE, 'authorization', value],
});
const zeros = '0'.repeat(64);
const withCredential = (credential: string): RequestHead =>
  withAuthorization(authorization(SIGNED, zeros, credential));

const HEADER = 'AuthorizationHeaderMalformed';
test(refuses, 'no fields', HEADER, withAuthorization('AWS4-HMAC-SHA256 '));
test(
  refuses,
  'a field twice',
  HEADER,
  withAuthorization(`${authorization(SIGNED, zeros)},Signature=${zeros}`),
);
test(
  refuses,
  'signature not hex',
  HEADER,
  withAuthorization(authorization(SIGNED, 'x'.repeat(64))),
);
test(refuses, 'signature too short', HEADER, withAuthorization(authorization(SIGNED, '00')));
test(
  refuses,
  'a signed header twice',
  HEADER,
  withAuthorization(authorization(`${SIGNED};host`, zeros)),
);
test(
  refuses,
  'upper-case signed header',
  HEADER,
  withAuthorization(authorization(`Host;${SIGNED}`, zeros)),
);
test(refuses, 'other service', HEADER, withCredential('a/20130524/r/sts/aws4_request'));
test(refuses, 'other terminator', HEADER, withCredential('a/20130524/r/s3/aws5_request'));
test(refuses, 'other date', HEADER, withCredential('a/20130525/r/s3/aws4_request'));
test(refuses, 'no key id', HEADER, withCredential('/20130524/r/s3/aws4_request'));
test(refuses, 'no scope', HEADER, withCredential(ACCESS_KEY_ID));
test(refuses, 'version 2', 'InvalidRequest', withAuthorization('AWS a:b'));
test(refuses, 'version 2 in the query', 'InvalidRequest', {
  ...getObject,
  target: '/bucket/key?AWSAccessKeyId=a&Signature=b%3D&Expires=1369440000',
  rawHeaders: [...HOST],
});
test(refuses, 'asymmetric', 'InvalidRequest', withAuthorization('AWS4-ECDSA-P256-SHA256 a'));
test(
  refuses,
  'host not signed',
  'AccessDenied',
  withAuthorization(authorization('x-amz-content-sha256;x-amz-date', zeros)),
);
test(
  refuses,
  'x-amz-date not signed',
  'AccessDenied',
  withAuthorization(authorization('host;x-amz-content-sha256', zeros)),
);
for (const name of ['x-amz-acl', 'X-Archil-Uid', 'X-Service-Mode']) {
  const extra = { ...getObject, rawHeaders: [...getObject.rawHeaders, name, '1'] };
  test(refuses, `${name} not signed`, 'AccessDenied', extra);
  test(refuses, `${name} not signed, presigned`, 'AccessDenied', presigned(PRESIGNED, name, '1'));
}
test(refuses, 'both forms at once', 'InvalidArgument', { ...getObject, target: PRESIGNED });
test(refuses, 'two authorizations', 'InvalidArgument', {
  ...getObject,
  rawHeaders: [...getObject.rawHeaders, 'authorization', 'Bearer key-1'],
});
test(refuses, 'broken escape', 'InvalidURI', { ...getObject, target: '/%zz' });
test(refuses, 'absolute target', 'InvalidURI', { ...getObject, target: 'http://h/test.txt' });
test(refuses, 'long target', 'InvalidURI', { ...getObject, target: `/${'a'.repeat(20_000)}` });
test(refuses, 'many parameters', 'InvalidURI', { ...getObject, target: `/?${'a&'.repeat(200)}` });

const without = (name: string): RequestHead => ({
  ...getObject,
  rawHeaders: getObject.rawHeaders.map((text) => (text === name ? 'x-other' : text)),
});
test(refuses, 'no date', 'AccessDenied', without('x-amz-date'));
test(refuses, 'no payload declaration', 'InvalidRequest', without('x-amz-content-sha256'));
test(refuses, 'no such day', 'AccessDenied', {
  ...getObject,
  rawHeaders: getObject.rawHeaders.map((text) => text.replace('20130524T', '20130231T')),
});
test(refuses, 'unknown payload declaration', 'InvalidArgument', {
  ...getObject,
  rawHeaders: getObject.rawHeaders.map((text) => (text === EMPTY_SHA256 ? 'STREAMING' : text)),
});

const QUERY = 'AuthorizationQueryParametersError';
for (const name of ['Algorithm', 'Credential', 'Date', 'Expires', 'SignedHeaders', 'Signature']) {
  const parameter = new RegExp(`X-Amz-${name}=[^&]*`);
  const twice = PRESIGNED.replace(parameter, '$&&$&');
  test(refuses, `${name} twice`, QUERY, presigned(twice));
  test(refuses, `${name} missing`, QUERY, presigned(PRESIGNED.replace(parameter, '')));
  test(refuses, `${name} empty`, QUERY, presigned(PRESIGNED.replace(parameter, `X-Amz-${name}=`)));
}
for (const seconds of ['0', '604801', '-1', '1e3', '99999999', '%0A1']) {
  const target = PRESIGNED.replace('86400', seconds);
  test(refuses, `expires after ${seconds} s`, QUERY, presigned(target));
}
test(refuses, 'date of another day', QUERY, presigned(PRESIGNED.replace('F20130524', 'F20130523')));

test('garbage gives no error of another kind', (t) => {
  const text = fc.oneof(
    fc.string(),
    fc.constantFrom(...HOST, ...DATE, ...EMPTY, 'authorization', 'AWS4-HMAC-SHA256 ', SECRET),
    fc.constantFrom('Credential=', 'SignedHeaders=', 'Signature=', ',', ';', '/', SIGNED, zeros),
    fc.constantFrom(ACCESS_KEY_ID, '20130524/r/s3/aws4_request', ...PRESIGNED.split(/(?=[&?])/)),
  );
  const line = fc.array(text, { maxLength: 8 }).map((pieces) => pieces.join(''));
  const rest = line.map((garbage) => `AWS4-HMAC-SHA256 ${garbage}`);
  const property = fc.property(line, rest, fc.array(line), (target, auth, rawHeaders) => {
    for (const head of [
      { method: 'GET', target: `/?${target}`, rawHeaders: [...HOST, ...rawHeaders] },
      { method: 'GET', target, rawHeaders: [...HOST, ...DATE, ...EMPTY, 'Authorization', auth] },
      { method: 'GET', target: `${PRESIGNED}${target}`, rawHeaders },
    ]) {
      try {
        readSignature(head, EXAMPLE_TIME);
      } catch (error) {
        if (!(error instanceof S3Error)) throw error;
      }
    }
  });
  fc.assert(property, { numRuns: 1000 });
  t.pass();
});
