import { hash } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import {
  CompleteMultipartUploadCommand,
  DeleteObjectsCommand,
  GetObjectCommand,
  ListObjectsV2Command,
  PutObjectCommand,
  S3Client,
  UploadPartCommand,
  type ChecksumAlgorithm,
  type S3ClientConfig,
} from '@aws-sdk/client-s3';
import anyTest, { type TestFn } from 'ava';
import {
  AwsChunkedDecoder,
  readDecodedLength,
} from '../../../../agent/edge/s3/auth/aws-chunked.ts';
import { BodyChecks, readTrailerNames } from '../../../../agent/edge/s3/auth/checksums.ts';
import { headerValue } from '../../../../agent/edge/s3/protocol/raw-headers.ts';
import {
  parseCompleteMultipartUpload,
  parseDelete,
} from '../../../../agent/edge/s3/http/request-documents.ts';
import { deriveSigningKey } from '../../../../agent/edge/s3/auth/sigv4-key.ts';
import {
  readSignature,
  verifySignature,
  type Payload,
} from '../../../../agent/edge/s3/auth/sigv4.ts';
import { renderAnswer } from '../../../../agent/edge/s3/protocol/xml.ts';
import { ACCESS_KEY_ID, outcome, SECRET } from '../../../helpers/signing.ts';

/*
 * Requests of the AWS SDK go over a socket to a server that does with them what the object API
 * does before it touches a disk: verify, decode, check the checksums.
 */

interface Received {
  readonly target: string;
  readonly rawHeaders: readonly string[];
  readonly payload: Payload | undefined;
  readonly body: Buffer;
}

const test = anyTest as TestFn<{ server: Server; endpoint: string; received: Received[] }>;

async function receive(request: IncomingMessage): Promise<Received> {
  const { method = '', url: target = '', rawHeaders } = request;
  const claim = readSignature({ method, target, rawHeaders }, Date.now());
  if (claim === undefined) throw new Error('not signed');
  const verified = verifySignature(claim, deriveSigningKey(SECRET, claim.scope));
  const { payload } = claim;
  const checks = BodyChecks.read(rawHeaders, payload);
  if (payload.kind !== 'aws-chunked') {
    const body = await buffer(request);
    assertDigests(checks, body);
    return { target, rawHeaders, payload, body };
  }
  const decoder = new AwsChunkedDecoder({
    decodedBytes: readDecodedLength(headerValue(rawHeaders, 'x-amz-decoded-content-length')),
    trailerNames: readTrailerNames(rawHeaders),
    hasTrailer: payload.trailer,
    signature: payload.signed ? verified : undefined,
  });
  const body = await buffer(request.pipe(decoder));
  assertDigests(checks, body, decoder.trailers);
  return { target, rawHeaders, payload, body };
}

function assertDigests(checks: BodyChecks, body: Buffer, trailers?: ReadonlyMap<string, string>) {
  checks.update(body);
  checks.checksum?.addNow(body);
  checks.verifyPayload();
  const digests = { md5: hash('md5', body, 'buffer'), checksum: checks.checksum?.digest() };
  checks.verify(digests, trailers);
}

test.before(async (t) => {
  const received: Received[] = [];
  // On a busy machine a connection may idle for longer than Node's default before its next use.
  const server = createServer({ keepAliveTimeout: 0 }, (request, response) => {
    receive(request).then(
      (each) => {
        received.push(each);
        // The SDK takes a POST that was answered without a document for a failed one.
        response.end(request.method === 'POST' ? renderAnswer('Result', []) : undefined);
      },
      (error: unknown) => {
        request.resume();
        response.writeHead(400).end(String(error));
      },
    );
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const endpoint = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  t.context = { server, endpoint, received };
});

test.after.always((t) => {
  t.context.server.close();
  t.context.server.closeAllConnections();
});

const makeClient = (endpoint: string, options: S3ClientConfig = {}): S3Client =>
  new S3Client({
    endpoint,
    region: 'home-1',
    forcePathStyle: true,
    maxAttempts: 1,
    credentials: { accessKeyId: ACCESS_KEY_ID, secretAccessKey: SECRET },
    ...options,
  });

const findRequest = (received: readonly Received[], start: string): Received => {
  const found = received.find(({ target }) => target.startsWith(start));
  if (found === undefined) throw new Error(`nothing was received for ${start}`);
  return found;
};

const KEYS = [
  ...["a b+c!'()*~", '%41%2F', 'é€\u{1F600}', 'x/../y//z', 'a=b&c?d#e;f:g@h,i$j', '"<>[]{}|\\^`'],
  ...['.', ' leading', 'trailing ', 'tab\tline\nfeed'],
];

test('keys with odd characters verify', async (t) => {
  const client = makeClient(t.context.endpoint);
  for (const key of KEYS) {
    await client.send(new GetObjectCommand({ Bucket: 'odd', Key: `k${key}` }));
    await client.send(new PutObjectCommand({ Bucket: 'odd', Key: `k${key}`, Body: key }));
  }
  t.pass();
});

test('queries with odd values verify', async (t) => {
  const client = makeClient(t.context.endpoint);
  for (const prefix of KEYS) {
    const options = { Prefix: prefix, Delimiter: '/', StartAfter: prefix, MaxKeys: 2 };
    await client.send(new ListObjectsV2Command({ Bucket: 'list', ...options }));
  }
  t.pass();
});

for (const algorithm of ['CRC32', 'CRC32C', 'CRC64NVME', 'SHA1', 'SHA256'] as ChecksumAlgorithm[]) {
  test(`${algorithm}: a buffer is declared by its hash, a stream comes in chunks`, async (t) => {
    const client = makeClient(t.context.endpoint);
    const bytes = Buffer.alloc(300_000, algorithm);
    const put = { Bucket: algorithm, ChecksumAlgorithm: algorithm };
    await client.send(new PutObjectCommand({ ...put, Key: 'buffer', Body: bytes }));
    const pieces = [
      bytes.subarray(0, 1000),
      bytes.subarray(1000, 200_000),
      bytes.subarray(200_000),
    ];
    await client.send(
      new PutObjectCommand({
        ...{ ...put, Key: 'stream', Body: Readable.from(pieces, { objectMode: false }) },
        ContentLength: bytes.length,
      }),
    );
    const whole = findRequest(t.context.received, `/${algorithm}/buffer`);
    t.is(whole.payload?.kind, 'sha256');
    t.deepEqual(whole.body, bytes);
    const streamed = findRequest(t.context.received, `/${algorithm}/stream`);
    t.deepEqual(streamed.payload, { kind: 'aws-chunked', signed: false, trailer: true });
    t.deepEqual(streamed.body, bytes);
  });
}

test('a part without checksum, with Content-MD5 left out, verifies', async (t) => {
  const client = makeClient(t.context.endpoint, { requestChecksumCalculation: 'WHEN_REQUIRED' });
  const part = { Bucket: 'part', Key: 'k', UploadId: 'u+/=', PartNumber: 1 };
  await client.send(new UploadPartCommand({ ...part, Body: 'text' }));
  t.deepEqual(findRequest(t.context.received, '/part').body, Buffer.from('text'));
});

test('metadata that needs trimming verifies', async (t) => {
  const client = makeClient(t.context.endpoint);
  const Metadata = { a: '  x   y  ', b: '', c: '1,2' };
  await client.send(new PutObjectCommand({ Bucket: 'meta', Key: 'k', Body: 'text', Metadata }));
  t.is(findRequest(t.context.received, '/meta').body.length, 4);
});

test('the documents of the SDK are read', async (t) => {
  const client = makeClient(t.context.endpoint);
  const Objects = KEYS.map((Key) => ({ Key }));
  await client.send(
    new DeleteObjectsCommand({ Bucket: 'delete', Delete: { Objects, Quiet: true } }),
  );
  const { body } = findRequest(t.context.received, '/delete');
  const { objects, quiet } = parseDelete(body);
  t.deepEqual(
    objects.map(({ key }) => key),
    KEYS,
  );
  t.true(quiet);

  const Parts = [
    { PartNumber: 1, ETag: '"aa"', ChecksumCRC32: 'AAAAAA==' },
    { PartNumber: 2, ETag: '"bb"' },
  ];
  const upload = { Bucket: 'complete', Key: 'k', UploadId: 'u', MultipartUpload: { Parts } };
  await client.send(new CompleteMultipartUploadCommand(upload));
  t.deepEqual(parseCompleteMultipartUpload(findRequest(t.context.received, '/complete').body), [
    { partNumber: 1, etag: 'aa', checksums: [{ algorithm: 'crc32', value: Buffer.alloc(4) }] },
    { partNumber: 2, etag: 'bb', checksums: [] },
  ]);
});

/** Parts of the SDK's signers that its types leave out. */
interface Presigner {
  presign(
    request: Record<string, unknown>,
    options: { expiresIn: number; signingDate: Date },
  ): Promise<{ query: Record<string, string> }>;
}

const presignedPut = (target: string, now: number): string =>
  outcome({ method: 'PUT', target, rawHeaders: ['Host', 'h'] }, now);

test('a presigned request verifies until it expires', async (t) => {
  const signer = await makeClient(t.context.endpoint).config.signer();
  const path = '/presigned/a%20b%2Bc%27%28';
  // The SDK's presigner for S3 adds this before it signs.
  const headers = { host: 'h', 'X-Amz-Content-Sha256': 'UNSIGNED-PAYLOAD' };
  const request = { method: 'PUT', protocol: 'http:', hostname: 'h', path, headers };
  const { query } = await (signer as unknown as Presigner).presign(
    { ...request, query: { partNumber: '1', uploadId: 'u+/ =' } },
    { expiresIn: 60, signingDate: new Date(0) },
  );
  const target = `/presigned/a%20b+c'(?${new URLSearchParams(query).toString()}`;
  t.is(presignedPut(target, 60_000), 'ok');
  t.is(presignedPut(target, 60_001), 'AccessDenied');
  t.is(presignedPut(target.replace('partNumber=1', 'partNumber=2'), 0), 'SignatureDoesNotMatch');
});
