/* The AWS SDK for JavaScript, set up as docs/object-api.md says, and URLs that it presigns. */
import { createHash, randomBytes } from 'node:crypto';
import { Readable } from 'node:stream';
import {
  AbortMultipartUploadCommand,
  CopyObjectCommand,
  CreateMultipartUploadCommand,
  DeleteObjectCommand,
  DeleteObjectsCommand,
  GetObjectCommand,
  HeadBucketCommand,
  HeadObjectCommand,
  ListBucketsCommand,
  ListMultipartUploadsCommand,
  paginateListObjectsV2,
  PutObjectCommand,
  S3Client,
  S3ServiceException,
} from '@aws-sdk/client-s3';
import { Upload } from '@aws-sdk/lib-storage';
import anyTest, { type TestFn } from 'ava';
import type { ApiClient } from '../helpers/api.ts';
import { exec } from '../helpers/disks.ts';
import { escapeKey } from '../helpers/objects.ts';
import { presign } from '../helpers/presign.ts';
import { Stack } from '../helpers/stack.ts';
import { type DiskUser, newDiskUser } from '../helpers/tools.ts';
import { MiB } from '../../shared/units.ts';

interface Context {
  stack: Stack;
  api: ApiClient;
  user: DiskUser;
  s3: S3Client;
}

const test = anyTest as TestFn<Context>;
const REGION = 'us-east-1';

test.before(async (t) => {
  const stack = await Stack.start();
  Object.assign(t.context, { stack });
  const api = await stack.newClient();
  const user = await newDiskUser(stack, api);
  const s3 = new S3Client({
    endpoint: user.s3Url,
    region: REGION,
    forcePathStyle: true,
    credentials: { accessKeyId: user.identifier, secretAccessKey: user.token },
  });
  Object.assign(t.context, { api, user, s3 });
});

test.after.always(async (t) => {
  t.context.s3?.destroy();
  await t.context.stack.stop();
});

/** Name and status of the failure that a call must end with. */
async function refusal(call: Promise<unknown>): Promise<[string, number | undefined]> {
  try {
    await call;
  } catch (error) {
    if (error instanceof S3ServiceException) return [error.name, error.$metadata.httpStatusCode];
    throw error;
  }
  return ['none', undefined];
}

/**
 * Puts the files that the disk lacks or has otherwise, by size and MD5, as syncing tools decide.
 */
async function syncFiles(s3: S3Client, Bucket: string, files: ReadonlyMap<string, string>) {
  const there = new Map<string, string | undefined>();
  for await (const page of paginateListObjectsV2({ client: s3 }, { Bucket, Prefix: 'synced/' })) {
    for (const { Key = '', ETag, Size } of page.Contents ?? []) there.set(Key, `${ETag} ${Size}`);
  }
  const sent: string[] = [];
  for (const [Key, Body] of files) {
    const md5 = createHash('md5').update(Body).digest('hex');
    if (there.get(Key) === `"${md5}" ${Buffer.byteLength(Body)}`) continue;
    await s3.send(new PutObjectCommand({ Bucket, Key, Body }));
    sent.push(Key);
  }
  return sent;
}

test('a second sync transfers nothing, and one after a change only that', async (t) => {
  const { s3, user, api } = t.context;
  const files = new Map(['a', 'b c', 'deep/ü'].map((name) => [`synced/${name}`, `of ${name}`]));
  t.deepEqual(await syncFiles(s3, user.disk, files), [...files.keys()]);
  t.deepEqual(await syncFiles(s3, user.disk, files), []);
  await exec(api, user.disk, "mv 'synced/b c' x; mv x 'synced/b c'; chmod 600 synced/a");
  t.deepEqual(await syncFiles(s3, user.disk, files), []);
  await exec(api, user.disk, 'printf "OF a" > synced/a');
  t.deepEqual(await syncFiles(s3, user.disk, files), ['synced/a']);
});

test('put, head, get, copy, list and delete', async (t) => {
  const { s3, user, api } = t.context;
  const Bucket = user.disk;
  const Key = "basic/a b+c%(1)'!*?#ü.txt";
  const put = await s3.send(
    new PutObjectCommand({
      ...{ Bucket, Key, Body: 'hello', ContentType: 'text/x-mine', CacheControl: 'no-cache' },
      Metadata: { who: 'me' },
    }),
  );
  t.is(put.ETag, `"${createHash('md5').update('hello').digest('hex')}"`);
  const head = await s3.send(new HeadObjectCommand({ Bucket, Key }));
  t.deepEqual([head.ContentLength, head.ContentType, head.ETag], [5, 'text/x-mine', put.ETag]);
  t.deepEqual([head.CacheControl, head.Metadata], ['no-cache', { who: 'me' }]);
  const get = await s3.send(new GetObjectCommand({ Bucket, Key, Range: 'bytes=1-3' }));
  t.deepEqual([await get.Body?.transformToString(), get.ContentRange], ['ell', 'bytes 1-3/5']);
  const CopySource = `${Bucket}/${escapeKey(Key)}`;
  await s3.send(new CopyObjectCommand({ Bucket, Key: 'basic/copy', CopySource }));
  t.is((await exec(api, Bucket, 'cat basic/copy')).stdout, 'hello');
  const copied = await s3.send(new HeadObjectCommand({ Bucket, Key: 'basic/copy' }));
  t.deepEqual([copied.ContentType, copied.Metadata], ['text/x-mine', { who: 'me' }]);
  const deleted = await s3.send(
    new DeleteObjectsCommand({ Bucket, Delete: { Objects: [{ Key }, { Key: 'basic/none' }] } }),
  );
  t.deepEqual([deleted.Deleted?.length, deleted.Errors], [2, undefined]);
  await s3.send(new DeleteObjectCommand({ Bucket, Key: 'basic/copy' }));
  t.deepEqual(await refusal(s3.send(new GetObjectCommand({ Bucket, Key }))), ['NoSuchKey', 404]);
  await s3.send(new HeadBucketCommand({ Bucket }));
  const { Buckets } = await s3.send(new ListBucketsCommand({}));
  t.deepEqual(
    Buckets?.map(({ Name }) => Name),
    [Bucket],
  );
});

test('a listing goes on from page to page', async (t) => {
  const { s3, user, api } = t.context;
  await exec(api, user.disk, 'mkdir -p list/sub && cd list && touch $(seq -w 1 25) sub/x');
  const keys: string[] = [];
  const prefixes: string[] = [];
  const input = { Bucket: user.disk, Prefix: 'list/', Delimiter: '/' };
  for await (const page of paginateListObjectsV2({ client: s3, pageSize: 7 }, input)) {
    keys.push(...(page.Contents ?? []).map(({ Key = '' }) => Key));
    prefixes.push(...(page.CommonPrefixes ?? []).map(({ Prefix = '' }) => Prefix));
  }
  const expected = Array.from({ length: 25 }, (_, i) => `list/${String(i + 1).padStart(2, '0')}`);
  t.deepEqual(keys, expected);
  t.deepEqual(prefixes, ['list/sub/']);
});

test('a stream of unknown length is uploaded in parts', async (t) => {
  const { s3, user } = t.context;
  const bytes = randomBytes(22 * MiB + 12_345);
  const chunks = Array.from({ length: 23 }, (_, i) => bytes.subarray(i * MiB, (i + 1) * MiB));
  const target = { Bucket: user.disk, Key: 'parts/stream.bin' };
  const params = { ...target, Body: Readable.from(chunks), ContentType: 'a/b' };
  const done = await new Upload({ client: s3, params, partSize: 5 * MiB, queueSize: 3 }).done();
  t.regex(done.ETag ?? '', /^"[0-9a-f]{32}-5"$/u);
  const get = await s3.send(new GetObjectCommand(target));
  t.deepEqual([get.ContentType, get.ETag], ['a/b', done.ETag]);
  t.true(bytes.equals((await get.Body?.transformToByteArray()) ?? Buffer.of()));
});

test('an upload that is given up is gone', async (t) => {
  const { s3, user } = t.context;
  const target = { Bucket: user.disk, Key: 'parts/given-up' };
  const { UploadId } = await s3.send(new CreateMultipartUploadCommand(target));
  const uploads = async () =>
    (
      await s3.send(new ListMultipartUploadsCommand({ Bucket: user.disk, Prefix: target.Key }))
    ).Uploads?.map((upload) => upload.UploadId);
  t.deepEqual(await uploads(), [UploadId]);
  await s3.send(new AbortMultipartUploadCommand({ ...target, UploadId }));
  t.is(await uploads(), undefined);
});

test('conditional writes and reads', async (t) => {
  const { s3, user } = t.context;
  const target = { Bucket: user.disk, Key: 'conditional' };
  const put = (Body: string, conditions: { IfMatch?: string; IfNoneMatch?: string }) =>
    s3.send(new PutObjectCommand({ ...target, Body, ...conditions }));
  const { ETag = '' } = await put('one', { IfNoneMatch: '*' });
  const failed = ['PreconditionFailed', 412] as const;
  t.deepEqual(await refusal(put('two', { IfNoneMatch: '*' })), [...failed]);
  await put('three', { IfMatch: ETag });
  t.deepEqual(await refusal(put('four', { IfMatch: ETag })), [...failed]);
  const get = await s3.send(new GetObjectCommand(target));
  t.is(await get.Body?.transformToString(), 'three');
  const same = s3.send(new GetObjectCommand({ ...target, IfNoneMatch: get.ETag }));
  t.deepEqual((await refusal(same))[1], 304);
});

for (const ChecksumAlgorithm of ['CRC32', 'CRC32C', 'CRC64NVME', 'SHA1', 'SHA256'] as const) {
  test(`a body with ${ChecksumAlgorithm} is checked`, async (t) => {
    const { s3, user } = t.context;
    const target = { Bucket: user.disk, Key: `checked/${ChecksumAlgorithm}` };
    const Body = Readable.from([Buffer.from('in '), Buffer.from('pieces')]);
    const ContentLength = 9;
    await s3.send(new PutObjectCommand({ ...target, Body, ContentLength, ChecksumAlgorithm }));
    const get = await s3.send(new GetObjectCommand(target));
    t.is(await get.Body?.transformToString(), 'in pieces');
  });
}

test('a body that is not what its checksum says is refused and not kept', async (t) => {
  const { s3, user } = t.context;
  const target = { Bucket: user.disk, Key: 'checked/wrong' };
  const ChecksumSHA256 = createHash('sha256').update('other').digest('base64');
  const put = s3.send(new PutObjectCommand({ ...target, Body: 'body', ChecksumSHA256 }));
  t.deepEqual(await refusal(put), ['BadDigest', 400]);
  t.deepEqual((await refusal(s3.send(new HeadObjectCommand(target))))[1], 404);
});

test('presigned URLs put and get, and serve for nothing else', async (t) => {
  const { user } = t.context;
  const key = 'presigned/a b.txt';
  const putUrl = await presign(user, 'PUT', key);
  const put = await fetch(putUrl, { method: 'PUT', body: 'by link' });
  t.is(put.status, 200, await put.text());
  const getUrl = await presign(user, 'GET', key);
  const get = await fetch(getUrl);
  t.deepEqual([get.status, await get.text()], [200, 'by link']);
  t.is((await fetch(getUrl, { method: 'DELETE' })).status, 403);
  t.is((await fetch(getUrl.replace('a%20b', 'other'))).status, 403);
  t.is((await fetch(`${getUrl}&response-content-type=text/html`)).status, 403);
});

test('with a wrong secret nothing is let in', async (t) => {
  const { user } = t.context;
  const s3 = new S3Client({
    endpoint: user.s3Url,
    region: REGION,
    forcePathStyle: true,
    credentials: { accessKeyId: user.identifier, secretAccessKey: `${user.token}x` },
  });
  const get = s3.send(new GetObjectCommand({ Bucket: user.disk, Key: 'x' }));
  t.deepEqual(await refusal(get), ['SignatureDoesNotMatch', 403]);
  s3.destroy();
});
