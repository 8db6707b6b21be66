/* Copies between disks, on one host and across hosts. */
import { randomBytes } from 'node:crypto';
import { readdir } from 'node:fs/promises';
import {
  CompleteMultipartUploadCommand,
  CopyObjectCommand,
  CreateMultipartUploadCommand,
  GetObjectCommand,
  HeadObjectCommand,
  PutObjectCommand,
  S3Client,
  S3ServiceException,
  UploadPartCopyCommand,
} from '@aws-sdk/client-s3';
import anyTest, { type TestFn } from 'ava';
import type { ApiClient } from '../helpers/api.ts';
import { isStagedName } from '../../agent/edge/s3/store/upload-names.ts';
import { layoutOf } from '../../agent/disks/disk-layout.ts';
import { createDisk, exec } from '../helpers/disks.ts';
import { diskMount } from '../helpers/host.ts';
import { ObjectClient, s3UrlOf } from '../helpers/objects.ts';
import { Stack, type StackNode } from '../helpers/stack.ts';
import { newDiskUser } from '../helpers/tools.ts';
import { waitFor } from '../helpers/wait.ts';
import { MiB } from '../../shared/units.ts';

interface Context {
  stack: Stack;
  api: ApiClient;
  other: StackNode;
  /** Disks that the same token opens: two on the first host, one on the other. */
  disks: Record<'here' | 'beside' | 'there', string>;
  /** Signs with that token, at the first host. */
  s3: S3Client;
  body: Buffer;
}

const test = anyTest as TestFn<Context>;
const TOKEN = 'a token of three disks';

const clientOf = (endpoint: string, accessKeyId: string, secretAccessKey: string): S3Client =>
  new S3Client({
    ...{ endpoint, region: 'us-east-1', forcePathStyle: true, maxAttempts: 1 },
    credentials: { accessKeyId, secretAccessKey },
  });

/** Creates a disk that the token opens and that the host of the URL has attached. */
async function newSharedDisk(api: ApiClient, url: string): Promise<[string, string]> {
  const { id } = await createDisk(api);
  const user = {
    type: 'token',
    nickname: 'copies',
    principal: TOKEN,
    tokenSuffix: TOKEN.slice(-4),
  };
  const added = await api.data<{ identifier: string }>('POST', `/api/disks/${id}/users`, user);
  await new ObjectClient(url, api.key).put(id, 'attached', 'x');
  return [id, added.identifier];
}

test.before(async (t) => {
  const stack = await Stack.start();
  Object.assign(t.context, { stack });
  const api = await stack.newClient();
  const [first, other] = [s3UrlOf(stack), await stack.addAgent()];
  await other.start();
  const [here, identifier] = await newSharedDisk(api, first);
  const [beside] = await newSharedDisk(api, first);
  const [there] = await newSharedDisk(api, other.environment['AGENT_PUBLIC_URL'] ?? '');
  const s3 = clientOf(first, identifier, TOKEN);
  Object.assign(t.context, {
    api,
    other,
    s3,
    disks: { here, beside, there },
    body: randomBytes(6 * MiB),
  });
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

/** The code with which a request is refused. */
async function refusal(request: Promise<unknown>): Promise<string> {
  try {
    await request;
    return 'done';
  } catch (error) {
    if (error instanceof S3ServiceException) return error.name;
    throw error;
  }
}

const WAYS = [
  ['here', 'beside'],
  ['there', 'here'],
  ['here', 'there'],
] as const;

for (const [from, to] of WAYS) {
  test(`an object is copied with all that belongs to it: ${from} to ${to}`, async (t) => {
    const { s3, disks, body } = t.context;
    const key = `source ü ${to}`;
    await s3.send(
      new PutObjectCommand({
        ...{ Bucket: disks[from], Key: key, Body: body, ChecksumAlgorithm: 'SHA256' },
        ...{ ContentType: 'text/x-mine', Metadata: { color: 'red' } },
      }),
    );
    const CopySource = encodeURI(`${disks[from]}/${key}`);
    const target = { Bucket: disks[to], Key: 'copy' };
    await s3.send(new CopyObjectCommand({ ...target, CopySource }));
    const found = await s3.send(new GetObjectCommand({ ...target, ChecksumMode: 'ENABLED' }));
    t.true(Buffer.from((await found.Body?.transformToByteArray()) ?? []).equals(body));
    t.deepEqual([found.ContentType, found.Metadata], ['text/x-mine', { color: 'red' }]);
    t.truthy(found.ChecksumSHA256);
    t.is(
      await refusal(
        s3.send(new CopyObjectCommand({ ...target, CopySource, CopySourceIfMatch: '"0"' })),
      ),
      'PreconditionFailed',
    );
    t.is(
      await refusal(
        s3.send(new CopyObjectCommand({ ...target, CopySource: `${disks[from]}/missing` })),
      ),
      'NoSuchKey',
    );
  });

  test(`a source may have a long path, and one that cannot be is not there: ${from} to ${to}`, async (t) => {
    const { api, s3, disks } = t.context;
    const directory = Array.from({ length: 6 }, () => 'd'.repeat(200)).join('/');
    await exec(api, disks[from], `mkdir -p ${directory} && printf deep > ${directory}/to-${to}`);
    const copy = (key: string) =>
      refusal(
        s3.send(
          new CopyObjectCommand({
            ...{ Bucket: disks[to], Key: 'from-deep', CopySource: `${disks[from]}/${key}` },
          }),
        ),
      );
    t.is(await copy(`${directory}/to-${to}`), 'done');
    const found = await s3.send(new HeadObjectCommand({ Bucket: disks[to], Key: 'from-deep' }));
    t.is(found.ContentLength, 4);
    for (const key of ['a//b', 'a/../b', 'k'.repeat(256), `${'d/'.repeat(2100)}x`]) {
      t.is(await copy(key), 'NoSuchKey', key);
    }
  });

  test(`parts are copied from ranges of an object: ${from} to ${to}`, async (t) => {
    const { s3, disks, body } = t.context;
    await s3.send(new PutObjectCommand({ Bucket: disks[from], Key: `parts/${to}`, Body: body }));
    const target = { Bucket: disks[to], Key: 'joined' };
    const { UploadId } = await s3.send(new CreateMultipartUploadCommand(target));
    const Parts = [];
    for (const [index, range] of [`0-${5 * MiB - 1}`, `${5 * MiB}-${6 * MiB - 1}`].entries()) {
      const PartNumber = index + 1;
      const { CopyPartResult } = await s3.send(
        new UploadPartCopyCommand({
          ...{ ...target, UploadId, PartNumber },
          ...{ CopySource: `${disks[from]}/parts/${to}`, CopySourceRange: `bytes=${range}` },
        }),
      );
      Parts.push({ PartNumber, ETag: CopyPartResult?.ETag });
    }
    const beyond = new UploadPartCopyCommand({
      ...{ ...target, UploadId, PartNumber: 3 },
      ...{ CopySource: `${disks[from]}/parts/${to}`, CopySourceRange: `bytes=1-${6 * MiB}` },
    });
    t.is(await refusal(s3.send(beyond)), 'InvalidArgument');
    const MultipartUpload = { Parts };
    await s3.send(new CompleteMultipartUploadCommand({ ...target, UploadId, MultipartUpload }));
    const found = await s3.send(new GetObjectCommand(target));
    t.true(Buffer.from((await found.Body?.transformToByteArray()) ?? []).equals(body));
  });
}

test('a credential copies from no disk that it does not open', async (t) => {
  const { api, disks, stack } = t.context;
  const user = await newDiskUser(stack, api);
  const s3 = clientOf(user.s3Url, user.identifier, user.token);
  for (const from of ['here', 'there'] as const) {
    const CopySource = `${disks[from]}/attached`;
    const copy = new CopyObjectCommand({ Bucket: user.disk, Key: 'stolen', CopySource });
    t.is(await refusal(s3.send(copy)), 'NoSuchBucket', from);
  }
  t.is(
    await refusal(s3.send(new HeadObjectCommand({ Bucket: user.disk, Key: 'stolen' }))),
    'NotFound',
  );
});

test.serial('a copy whose source dies leaves nothing, and can be repeated', async (t) => {
  const { api, s3, disks, other, stack } = t.context;
  await exec(api, disks.there, 'truncate -s 1G large');
  const target = { Bucket: disks.here, Key: 'cut-off' };
  const CopySource = `${disks.there}/large`;
  const copying = refusal(s3.send(new CopyObjectCommand({ ...target, CopySource })));
  const { uploads } = layoutOf(diskMount(stack, disks.here));
  await waitFor('the copy to begin', async () => (await readdir(uploads)).some(isStagedName));
  await other.daemon.stop('SIGKILL');
  t.is(await copying, 'ServiceUnavailable');
  t.is(await refusal(s3.send(new HeadObjectCommand(target))), 'NotFound');
  t.false((await readdir(uploads)).some(isStagedName));
  await other.start();
  await exec(api, disks.there, 'truncate -s 1M large');
  await waitFor('the source', async () => {
    const again = await refusal(s3.send(new CopyObjectCommand({ ...target, CopySource })));
    return again === 'done';
  });
});

test.serial('the owner and the allowed addresses of a source are looked at', async (t) => {
  const { api, s3, disks } = t.context;
  const target = { Bucket: disks.here, Key: 'owned' };
  const CopySource = `${disks.there}/attached`;
  const ExpectedSourceBucketOwner = '000000000000';
  const other = new CopyObjectCommand({ ...target, CopySource, ExpectedSourceBucketOwner });
  t.is(await refusal(s3.send(other)), 'AccessDenied');
  const path = `/api/disks/${disks.beside}/allowed-ips`;
  await api.data('PUT', path, { allowedIps: ['203.0.113.5'] });
  const closed = new CopyObjectCommand({ ...target, CopySource: `${disks.beside}/attached` });
  t.is(await refusal(s3.send(closed)), 'AccessDenied');
  await api.data('PUT', path, { allowedIps: [] });
});
