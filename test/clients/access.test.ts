/* Rights of object API clients, seen by a tool with a disk token. */
import anyTest, { type TestFn } from 'ava';
import type { Disk } from '../../shared/schemas/disk.ts';
import type { AuthorizedUser } from '../../shared/schemas/disk-user.ts';
import type { ApiClient } from '../helpers/api.ts';
import { createDisk } from '../helpers/disks.ts';
import { textsOf } from '../helpers/objects.ts';
import { Stack } from '../helpers/stack.ts';
import {
  type Credentials,
  curlSigned,
  type DiskUser,
  newDiskUser,
  Tools,
} from '../helpers/tools.ts';

interface Context {
  stack: Stack;
  api: ApiClient;
  tools: Tools;
}

const test = anyTest as TestFn<Context>;

test.before(async (t) => {
  const stack = await Stack.start();
  Object.assign(t.context, { stack });
  Object.assign(t.context, { api: await stack.newClient(), tools: await Tools.in(stack) });
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

/** Lists the disk's objects. @returns `ok` or the code of the refusal */
async function listing(
  { tools }: Context,
  { s3Url, disk, identifier, token }: DiskUser,
  other: Partial<Credentials> = {},
): Promise<string> {
  const signed = curlSigned({ identifier, token, ...other });
  const printed = await tools.output('curl', ...signed, `${s3Url}/${disk}?list-type=2`);
  return printed.includes('<ListBucketResult') ? 'ok' : (textsOf(printed, 'Code')[0] ?? printed);
}

test('a client of a disk user is among the connected clients', async (t) => {
  const { stack, api } = t.context;
  const user = await newDiskUser(stack, api);
  t.is(await listing(t.context, user), 'ok');
  const { connectedClients } = await api.data<Disk>('GET', `/api/disks/${user.disk}`);
  t.deepEqual(
    connectedClients.map(({ ipAddress }) => ipAddress),
    ['127.0.0.1'],
  );
});

test('allowed addresses keep the others out, at once and by themselves', async (t) => {
  const { stack, api } = t.context;
  const user = await newDiskUser(stack, api, { allowedIps: ['203.0.113.5'] });
  t.is(await listing(t.context, user), 'AccessDenied');
  const path = `/api/disks/${user.disk}/allowed-ips`;
  await api.data('PUT', path, { allowedIps: ['127.0.0.0/8'] });
  t.is(await listing(t.context, user), 'ok');
  await api.data('PUT', path, { allowedIps: ['203.0.113.0/24', '2001:db8::/32'] });
  t.is(await listing(t.context, user), 'AccessDenied');
});

test('a removed user is out at once, and only that one', async (t) => {
  const { stack, api } = t.context;
  const user = await newDiskUser(stack, api);
  const users = `/api/disks/${user.disk}/users`;
  const second = await api.data<AuthorizedUser>('POST', users, { type: 'token', nickname: '2' });
  const other = { identifier: second.identifier, token: second.token ?? '' };
  t.is(await listing(t.context, user, other), 'ok');
  await api.data('DELETE', `${users}/token?identifier=${encodeURIComponent(other.identifier)}`);
  t.is(await listing(t.context, user, other), 'InvalidAccessKeyId');
  t.is(await listing(t.context, user), 'ok');
});

test('a disk token opens no other disk', async (t) => {
  const { stack, api } = t.context;
  const [mine, other] = [await newDiskUser(stack, api), await newDiskUser(stack, api)];
  t.is(await listing(t.context, { ...mine, disk: other.disk }), 'NoSuchBucket');
  t.is(await listing(t.context, { ...mine, disk: 'dsk-0123456789abcdef' }), 'NoSuchBucket');
  t.is(await listing(t.context, mine, { token: other.token }), 'SignatureDoesNotMatch');
});

test('a cloudsts user cannot sign in, and is told why', async (t) => {
  const { stack, api, tools } = t.context;
  const user = await newDiskUser(stack, api);
  const principal = 'arn:aws:iam::123456789012:role/worker';
  const body = { type: 'cloudsts', principal };
  const sts = await api.data<AuthorizedUser>('POST', `/api/disks/${user.disk}/users`, body);
  const other = { identifier: sts.identifier, token: 'whatever' };
  // A colon in the access key would end it in curl's -u, so boto3 signs.
  const printed = await tools.output(
    'python3',
    '-c',
    [
      'import sys, boto3, botocore',
      's3 = boto3.client("s3", endpoint_url=sys.argv[1], aws_access_key_id=sys.argv[2],',
      '                  aws_secret_access_key=sys.argv[3], region_name="us-east-1")',
      'try: s3.list_objects_v2(Bucket=sys.argv[4])',
      'except botocore.exceptions.ClientError as error: print(error)',
    ].join('\n'),
    ...[user.s3Url, other.identifier, other.token, user.disk],
  );
  t.regex(printed, /\(InvalidAccessKeyId\).*use a disk token/u);
});

test("a role that is named like another's token user takes nothing from that user", async (t) => {
  const { stack, api, tools } = t.context;
  const user = await newDiskUser(stack, api);
  const stranger = await stack.newClient();
  const { id } = await createDisk(stranger);
  const body = { type: 'cloudsts', principal: user.identifier };
  await stranger.data('POST', `/api/disks/${id}/users`, body);
  t.is(await listing(t.context, user), 'ok');
  t.is(await listing(t.context, { ...user, disk: id }), 'NoSuchBucket');
  const buckets = await tools.output('curl', ...curlSigned(user), `${user.s3Url}/`);
  t.deepEqual(textsOf(buckets, 'Name'), [user.disk]);
});
