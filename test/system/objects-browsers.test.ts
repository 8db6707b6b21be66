/* Uploads of objects by forms of browsers. */
import anyTest, { type TestFn } from 'ava';
import type { ApiClient } from '../helpers/api.ts';
import { ObjectClient, textsOf } from '../helpers/objects.ts';
import { postForm as post } from '../helpers/post-form.ts';
import { Stack } from '../helpers/stack.ts';
import { type DiskUser, newDiskUser } from '../helpers/tools.ts';

const test = anyTest as TestFn<{ stack: Stack; api: ApiClient; user: DiskUser; s3: ObjectClient }>;

test.before(async (t) => {
  const stack = await Stack.start();
  t.context.stack = stack;
  const api = await stack.newClient();
  const user = await newDiskUser(stack, api);
  Object.assign(t.context, { api, user, s3: new ObjectClient(user.s3Url, api.key) });
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

test('a form uploads an object under its policy', async (t) => {
  const { user, s3 } = t.context;
  const conditions = [
    { bucket: user.disk },
    ['starts-with', '$key', 'forms/'],
    ['starts-with', '$Content-Type', 'image/'],
    { 'x-amz-meta-who': 'ich ж' },
    ['content-length-range', 1, 2_000_000],
  ];
  const fields = {
    key: 'forms/a b/${filename}',
    'Content-Type': 'image/jpeg',
    'x-amz-meta-who': 'ich ж',
    'x-ignore-this': 'x',
  };
  const file = 'x'.repeat(1_500_000);
  const sent = await post(user, { fields, conditions, file });
  t.deepEqual([sent.status, sent.text], [204, '']);
  const got = await s3.get(user.disk, 'forms/a b/photo.jpg');
  t.is(got.text, file);
  t.is(got.headers.get('etag'), sent.headers.get('etag'));
  t.is(got.headers.get('content-type'), 'image/jpeg');
  t.is(got.headers.get('x-amz-meta-who'), Buffer.from('ich ж').toString('latin1'));
});

test('a form says how it is answered', async (t) => {
  const { user } = t.context;
  const key = 'forms/answered';
  const anything = ['key', 'success_action_status', 'success_action_redirect'];
  const conditions = anything.map((name) => ['starts-with', `$${name}`, '']);
  const created = await post(user, { conditions, fields: { key, success_action_status: '201' } });
  t.is(created.status, 201);
  t.deepEqual(textsOf(created.text, 'Key'), [key]);
  const success_action_redirect = 'http://example.test/done?a=b';
  const redirected = await post(user, { conditions, fields: { key, success_action_redirect } });
  t.is(redirected.status, 303);
  const location = new URL(redirected.headers.get('location') ?? '');
  t.is(location.host, 'example.test');
  t.deepEqual(
    ['a', 'bucket', 'key'].map((name) => location.searchParams.get(name)),
    ['b', user.disk, key],
  );
});

test('a form that its policy does not allow uploads nothing', async (t) => {
  const { user, s3 } = t.context;
  const key = 'refused';
  const allowed = { key };
  for (const [options, expected] of [
    [{ conditions: [], fields: { key } }, [403, 'AccessDenied']],
    [{ conditions: [allowed], fields: { key }, isBound: false }, [403, 'AccessDenied']],
    [{ conditions: [{ key: 'other' }], fields: { key } }, [403, 'AccessDenied']],
    [{ conditions: [allowed, { bucket: 'dsk-other' }], fields: { key } }, [403, 'AccessDenied']],
    [{ conditions: [allowed], fields: { key, 'x-amz-meta-a': 'b' } }, [403, 'AccessDenied']],
    [{ conditions: [allowed], fields: { key }, expiresInMs: -1000 }, [403, 'AccessDenied']],
    [{ conditions: [allowed], fields: { key }, secret: 'x' }, [403, 'SignatureDoesNotMatch']],
    [
      { conditions: [allowed, ['content-length-range', 0, 3]], fields: { key } },
      [400, 'EntityTooLarge'],
    ],
    [
      { conditions: [allowed, ['content-length-range', 9, 99]], fields: { key } },
      [400, 'EntityTooSmall'],
    ],
    [
      { conditions: [allowed, ['matches', '$key', 'x']], fields: { key } },
      [400, 'InvalidPolicyDocument'],
    ],
    [
      { conditions: [allowed, { tagging: 'x' }], fields: { key, tagging: 'x' } },
      [501, 'NotImplemented'],
    ],
    [
      {
        conditions: [allowed, { 'x-amz-checksum-sha256': `${'A'.repeat(43)}=` }],
        fields: { key, 'x-amz-checksum-sha256': `${'A'.repeat(43)}=` },
      },
      [400, 'BadDigest'],
    ],
  ] as const) {
    const { status, code } = await post(user, options);
    t.deepEqual([status, code], [...expected], JSON.stringify(options));
  }
  t.is((await s3.get(user.disk, key)).status, 404);
});

test('a form without credentials, without a file, or that is cut off is refused', async (t) => {
  const { user, s3 } = t.context;
  const url = `${user.s3Url}/${user.disk}`;
  const form = new FormData();
  form.append('key', 'x');
  const send = async (init: RequestInit) => {
    const response = await fetch(url, { method: 'POST', ...init });
    return [response.status, textsOf(await response.text(), 'Code')[0]];
  };
  t.deepEqual(await send({ body: form }), [400, 'MalformedPOSTRequest']);
  form.append('file', new Blob(['x']), 'x');
  t.deepEqual(await send({ body: form }), [403, 'AccessDenied']);
  t.deepEqual(await send({ body: form, headers: { authorization: s3.key } }), [204, undefined]);
  t.is((await s3.get(user.disk, 'x')).text, 'x');
  const authorization = s3.key;
  const head =
    '--b\r\nContent-Disposition: form-data; name="key"\r\n\r\nx\r\n--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nYY';
  const headers = { authorization, 'content-type': 'multipart/form-data; boundary=b' };
  t.deepEqual(await send({ body: head, headers }), [400, 'MalformedPOSTRequest']);
  const long = `--b\r\nContent-Disposition: form-data; name="key"\r\n\r\n${'x'.repeat(40_000)}`;
  t.deepEqual(await send({ body: long, headers }), [400, 'MalformedPOSTRequest']);
  const plain = { authorization, 'content-type': 'text/plain' };
  t.deepEqual(await send({ body: 'x', headers: plain }), [412, 'PreconditionFailed']);
  t.is((await s3.get(user.disk, 'x')).text, 'x');
});
