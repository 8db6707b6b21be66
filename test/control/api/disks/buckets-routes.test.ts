/* Object storage behind a disk: what create-disk takes, and what the record shows. */
import anyTest, { type TestFn } from 'ava';
import type { CreatedDisk } from '../../../../shared/schemas/disk.ts';
import type { DiskMount } from '../../../../shared/schemas/disk-bucket.ts';
import type { ApiClient } from '../../../helpers/api.ts';
import { createBucketDisk, mountOf, ownBuckets, readMount } from '../../../helpers/buckets.ts';
import { newName, readManifest } from '../../../helpers/disks.ts';
import { dumpRedis } from '../../../helpers/redis-contents.ts';
import { Stack } from '../../../helpers/stack.ts';
import { type DiskUser, newDiskUser } from '../../../helpers/tools.ts';
import { waitFor } from '../../../helpers/wait.ts';

const test = anyTest as TestFn<{ stack: Stack; api: ApiClient; bucket: DiskUser }>;

test.before(async (t) => {
  const own = await ownBuckets();
  const networks = `${own['BUCKET_REACHABLE_NETWORKS']},127.0.0.1/32:9`;
  const stack = await Stack.start({ ...own, BUCKET_REACHABLE_NETWORKS: networks });
  Object.assign(t.context, { stack });
  const api = await stack.newClient();
  Object.assign(t.context, { api, bucket: await newDiskUser(stack, api) });
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

const keyPair = { accessKeyId: 'AKIAIOSFODNN7EXAMPLE', secretAccessKey: 'a-secret-key' };
const s3 = { type: 's3', bucketName: 'training-data', ...keyPair };
const elsewhere = { ...s3, type: 's3-compatible', bucketEndpoint: 'https://objects.example' };
const azure = {
  type: 'azure-blob',
  containerName: 'training-data',
  tenantId: 'tenant',
  clientId: 'client',
  clientSecret: 'secret',
};

test('a bucket that can be used is shown as connected, without its secrets', async (t) => {
  const { api, bucket, stack } = t.context;
  const disk = await createBucketDisk(api, bucket, { bucketPrefix: 'runs/2026' });
  const { id, ...mount } = await readMount(api, disk.id);
  t.regex(id, /^mnt-[0-9a-f]{16}$/u);
  const { checkedAt, ...shown } = mount;
  t.truthy(checkedAt);
  t.deepEqual(shown, {
    type: 's3-compatible',
    path: '/',
    name: bucket.disk,
    accessMode: 'rw',
    config: {
      bucketName: bucket.disk,
      bucketEndpoint: bucket.s3Url,
      bucketPrefix: 'runs/2026/',
      sessionId: '',
      writeBack: 'sync',
    },
    connectionStatus: 'connected',
    authorizationType: 'accessKeys',
    problemCount: 0,
    problems: [],
  });
  t.deepEqual(disk.mounts, [{ id, ...mount }]);
  const manifest = await readManifest(stack, disk.id);
  t.is(manifest.mounts?.[0]?.id, id, 'a rebuilt directory has the mount');
  t.false(JSON.stringify(manifest).includes(bucket.token));
});

test('of a named port of an address only that port may be an endpoint', async (t) => {
  const { api, stack } = t.context;
  const { port } = new URL(stack.environment['REDIS_URL'] ?? '');
  for (const bucketEndpoint of [
    `http://127.0.0.1:${port}`,
    `http://localhost:${port}`,
    `https://127.0.0.1:${port}`,
    'https://127.0.0.1',
  ]) {
    const mount = { ...elsewhere, bucketEndpoint };
    const { status, body } = await api.call<{ error: string }>('POST', '/api/disks', {
      ...{ name: newName(), mounts: [mount] },
    });
    t.is(status, 400, bucketEndpoint);
    t.regex(body.error, /private address/u);
  }
});

test('secrets are stored sealed', async (t) => {
  const { api, bucket, stack } = t.context;
  const secretAccessKey = 'c3VjaC1hLXZlcnktcGxhaW4tc2VjcmV0';
  await createBucketDisk(api, bucket, { secretAccessKey });
  const text = await dumpRedis(await stack.redisClient());
  t.true(text.includes(bucket.disk));
  t.false(text.includes(secretAccessKey));
});

test('a wrong secret is found out and named; right ones make the bucket usable', async (t) => {
  const { api, bucket } = t.context;
  const disk = await createBucketDisk(api, bucket, { secretAccessKey: 'wrong' });
  const [mount] = disk.mounts;
  t.like(mount, { connectionStatus: 'error' });
  t.regex(mount?.authError ?? '', /secret|credentials/u);
  const path = `/api/disks/${disk.id}/mounts/${mount?.id}/credentials`;
  const { identifier: accessKeyId, token: secretAccessKey } = bucket;
  const fixed = await api.data<DiskMount>('POST', path, { accessKeyId, secretAccessKey });
  t.like(fixed, { id: mount?.id, connectionStatus: 'connected' });
  t.false(Object.hasOwn(fixed, 'authError'));
  t.is((await readMount(api, disk.id)).connectionStatus, 'connected');
});

test('a bucket that appears later is found by itself', async (t) => {
  const { api, stack } = t.context;
  const bucket = await newDiskUser(stack, api);
  await api.data('PUT', `/api/disks/${bucket.disk}/allowed-ips`, { allowedIps: ['192.0.2.1'] });
  const disk = await createBucketDisk(api, bucket);
  t.like(disk.mounts[0], { connectionStatus: 'error' });
  await api.data('PUT', `/api/disks/${bucket.disk}/allowed-ips`, { allowedIps: [] });
  await waitFor('the bucket to be found', async () => {
    return (await readMount(api, disk.id)).connectionStatus === 'connected';
  });
  t.pass();
});

test('credentials of the wrong kind, and of no mount, are refused', async (t) => {
  const { api, bucket } = t.context;
  const disk = await createBucketDisk(api, bucket);
  const path = `/api/disks/${disk.id}/mounts/${disk.mounts[0]?.id}/credentials`;
  const wrong = await api.call('POST', path, { tenantId: 'a', clientId: 'b', clientSecret: 'c' });
  t.is(wrong.status, 400);
  t.regex(wrong.body.error, /accessKeyId/u);
  const unknown = `/api/disks/${disk.id}/mounts/mnt-0123456789abcdef/credentials`;
  t.is((await api.call('POST', unknown, keyPair)).status, 404);
});

test('a repeated creation matches by all but the secrets', async (t) => {
  const { api, bucket } = t.context;
  const disk = await createBucketDisk(api, bucket);
  const repeat = (change: object): ReturnType<typeof api.call<{ data: CreatedDisk }>> =>
    api.call('POST', '/api/disks', { name: disk.name, mounts: [mountOf(bucket, { ...change })] });
  const same = await repeat({ ...keyPair, bucketEndpoint: `${bucket.s3Url}/` });
  t.is(same.status, 200);
  t.is(same.body.data.id, disk.id);
  for (const change of [{ bucketPrefix: 'a' }, { bucketName: 'another' }, { writeBack: 'lazy' }]) {
    t.is((await repeat(change)).status, 409, JSON.stringify(change));
  }
  t.is((await api.call('POST', '/api/disks', { name: disk.name })).status, 409);
});

test('every kind of storage of the S3 family is taken', async (t) => {
  const { api } = t.context;
  // Their endpoints are of this machine, where nothing answers.
  const bucketEndpoint = 'http://127.0.0.1:9';
  for (const type of ['s3', 'gcs', 's3-compatible', 'r2']) {
    const body = { name: newName(), mounts: [{ ...elsewhere, type, bucketEndpoint }] };
    const reply = await api.call<{ data: CreatedDisk }>('POST', '/api/disks', body);
    t.is(reply.headers.get('x-ignored-fields'), null);
    const disk = reply.body.data;
    t.is(disk.mounts[0]?.config.bucketEndpoint, bucketEndpoint);
    t.like(disk.mounts[0], { type, connectionStatus: 'error' });
    t.regex(disk.mounts[0]?.authError ?? '', /cannot be reached \(ECONNREFUSED\)/u);
  }
});

const refused = test.macro({
  async exec(t, mount: object, reason: RegExp) {
    const body = { name: newName(), mounts: [mount] };
    const reply = await t.context.api.call('POST', '/api/disks', body);
    t.is(reply.status, 400);
    t.regex(reply.body.error, reason);
    t.false(reply.body.error.includes('a-secret-key'));
  },
  title: (given) => `a mount is refused: ${given}`,
});

const { accessKeyId: _, ...keyless } = elsewhere;
test('an unknown type', refused, { ...s3, type: 'ftp' }, /type/u);
test('no bucket', refused, { type: 's3', ...keyPair }, /bucketName/u);
test('a bucket that is a path', refused, { ...s3, bucketName: 'a/../b' }, /bucketName/u);
test('no endpoint', refused, { ...s3, type: 'r2' }, /bucketEndpoint/u);
test(
  'an access mode that no mount has',
  refused,
  { ...elsewhere, accessMode: 'ro' },
  /accessMode/u,
);
test('a mount to read from alone', refused, { ...elsewhere, readOnly: true }, /readOnly/u);
test('no key', refused, keyless, /accessKeyId/u);
test('a role of the host', refused, { type: 's3', bucketName: 'data' }, /iam.* not built/u);
test(
  'an endpoint that is no URL',
  refused,
  { ...elsewhere, bucketEndpoint: 'objects.example' },
  /URL/u,
);
test('another protocol', refused, { ...elsewhere, bucketEndpoint: 'file:///etc/passwd' }, /URL/u);
test(
  'credentials in the endpoint',
  refused,
  { ...elsewhere, bucketEndpoint: 'https://a:b@objects.example' },
  /without credentials/u,
);
test(
  'a private address',
  refused,
  { ...elsewhere, bucketEndpoint: 'https://10.0.0.1' },
  /private address/u,
);
test(
  'metadata of the machine',
  refused,
  { ...elsewhere, bucketEndpoint: 'http://169.254.169.254' },
  /private address/u,
);
test(
  'IPv6 loopback',
  refused,
  { ...elsewhere, bucketEndpoint: 'http://[::1]:9000' },
  /private address/u,
);
test(
  'a plain connection',
  refused,
  { ...elsewhere, bucketEndpoint: 'http://objects.example' },
  /https/u,
);
test('a prefix that leads out', refused, { ...s3, bucketPrefix: 'a/../b' }, /bucketPrefix/u);
test('Azure without an account', refused, azure, /storageAccountName or endpoint/u);
test(
  'a plain connection to Azure',
  refused,
  { ...azure, endpoint: 'http://127.0.0.1:10000/account' },
  /https/u,
);
test(
  'a private address for Azure',
  refused,
  { ...azure, endpoint: 'https://169.254.169.254/account' },
  /private address/u,
);
test(
  'a tenant that is a path',
  refused,
  { ...azure, storageAccountName: 'data', tenantId: '../common' },
  /tenantId/u,
);
test('Azure without a secret', refused, { ...azure, clientSecret: undefined }, /clientSecret/u);
