/* Which pages of other origins may read objects and shared files: a setting of each disk. */
import anyTest, { type TestFn } from 'ava';
import type { Disk } from '../../shared/schemas/disk.ts';
import type { ApiClient } from '../helpers/api.ts';
import { createDisk, missingDiskId, readManifest } from '../helpers/disks.ts';
import { ObjectClient } from '../helpers/objects.ts';
import { postForm } from '../helpers/post-form.ts';
import { presign } from '../helpers/presign.ts';
import { forgeLink, share } from '../helpers/shares.ts';
import { Stack } from '../helpers/stack.ts';
import { type DiskUser, newDiskUser } from '../helpers/tools.ts';

const PAGE = 'https://app.example.com';
const FOREIGN = 'https://evil.example.com';

interface Context {
  readonly stack: Stack;
  readonly api: ApiClient;
  /** A user of the disk that allows the page. */
  readonly user: DiskUser;
  /** A disk that allows none. */
  readonly closed: string;
  /** The host that has the disk, another one, and control. */
  readonly ways: readonly string[];
}
const test = anyTest as TestFn<Context>;

test.before(async (t) => {
  const stack = await Stack.start();
  Object.assign(t.context, { stack });
  const api = await stack.newClient();
  const user = await newDiskUser(stack, api, { allowedOrigins: [PAGE] });
  const { id: closed } = await createDisk(api);
  const objects = new ObjectClient(user.s3Url, api.key);
  for (const disk of [user.disk, closed]) await objects.put(disk, 'film.mp4', 'contents');
  const other = await stack.addAgent();
  await other.start();
  const ways = [user.s3Url, other.environment['AGENT_PUBLIC_URL'] ?? '', stack.baseUrl];
  Object.assign(t.context, { api, user, closed, ways });
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

const preflight = (url: string, origin: string, method = 'PUT'): Promise<Response> =>
  fetch(url, {
    method: 'OPTIONS',
    headers: {
      origin,
      'access-control-request-method': method,
      'access-control-request-headers': 'content-type,x-amz-meta-who',
    },
  });

const getPart = (url: string, origin: string): Promise<Response> =>
  fetch(url, { headers: { origin, range: 'bytes=0-3' } });

const corsOf = ({ headers }: Response): string[] =>
  [...headers.keys()].filter((name) => name.startsWith('access-control-'));

test('the list can be read, replaced and cleared, and the disk and its manifest show it', async (t) => {
  const { api, stack } = t.context;
  const { id } = await createDisk(api, { allowedOrigins: [PAGE] });
  const path = `/api/disks/${id}/allowed-origins`;
  t.deepEqual(await api.data('GET', path), { allowedOrigins: [PAGE] });
  for (const allowedOrigins of [[FOREIGN, 'http://localhost:3000'], ['*'], []]) {
    t.deepEqual(await api.data('PUT', path, { allowedOrigins }), { allowedOrigins });
    t.deepEqual(await api.data('GET', path), { allowedOrigins });
    const disk = await api.data<Disk>('GET', `/api/disks/${id}`);
    t.deepEqual(disk.allowedOrigins, allowedOrigins);
    t.deepEqual((await readManifest(stack, id)).allowedOrigins, allowedOrigins);
    const answer = await preflight(`${stack.baseUrl}/${id}/key`, FOREIGN);
    t.is(answer.status, allowedOrigins.length > 0 ? 204 : 403);
  }
});

test('a preflight of an allowed origin is answered at every address', async (t) => {
  const { user, ways } = t.context;
  for (const way of ways) {
    for (const path of [user.disk, `${user.disk}/new.bin?uploads`]) {
      const answer = await preflight(`${way}/${path}`, PAGE);
      t.is(answer.status, 204, way);
      t.is(answer.headers.get('access-control-allow-origin'), PAGE);
      t.is(answer.headers.get('access-control-allow-headers'), 'content-type,x-amz-meta-who');
      t.regex(answer.headers.get('access-control-allow-methods') ?? '', /PUT/u);
      t.is(answer.headers.get('vary'), 'Origin, Access-Control-Request-Headers');
    }
  }
});

test('a preflight does not tell whether a disk exists', async (t) => {
  const { user, closed, ways } = t.context;
  for (const way of ways) {
    const answers: unknown[] = [];
    for (const [disk, origin] of [
      [user.disk, FOREIGN],
      [user.disk, 'null'],
      [closed, PAGE],
      [missingDiskId, PAGE],
    ] as const) {
      const answer = await preflight(`${way}/${disk}/film.mp4`, origin);
      t.is(answer.status, 403);
      t.deepEqual(corsOf(answer), []);
      const own = new RegExp(`${disk}|<RequestId>.*</RequestId>`, 'gu');
      const headers = [...answer.headers].filter(
        ([name]) => !['date', 'x-amz-request-id'].includes(name),
      );
      answers.push([headers, (await answer.text()).replaceAll(own, '')]);
    }
    for (const answer of answers) t.deepEqual(answer, answers[0]);
  }
});

test('a page reads an object, and failures, only of a disk that allows its origin', async (t) => {
  const { api, user, closed, ways } = t.context;
  const { key: authorization } = api;
  for (const way of ways) {
    const get = (disk: string, key: string, origin: string): Promise<Response> =>
      fetch(`${way}/${disk}/${key}`, { headers: { authorization, origin, range: 'bytes=0-3' } });
    const read = await get(user.disk, 'film.mp4', PAGE);
    t.is(read.status, 206);
    t.is(await read.text(), 'cont');
    t.is(read.headers.get('access-control-allow-origin'), PAGE);
    t.is(read.headers.get('vary'), 'Origin');
    const exposed = (read.headers.get('access-control-expose-headers') ?? '').split(', ');
    for (const name of ['ETag', 'Content-Range', 'x-amz-request-id']) {
      t.true(exposed.includes(name), name);
    }
    const missing = await get(user.disk, 'missing', PAGE);
    t.deepEqual([missing.status, missing.headers.get('access-control-allow-origin')], [404, PAGE]);
    const unsigned = await fetch(`${way}/${user.disk}/film.mp4`, { headers: { origin: PAGE } });
    t.is(unsigned.status, 403);
    t.is(unsigned.headers.get('access-control-allow-origin'), PAGE);
    for (const refused of [
      await get(user.disk, 'film.mp4', FOREIGN),
      await get(closed, 'film.mp4', PAGE),
      await get(missingDiskId, 'film.mp4', PAGE),
    ]) {
      t.deepEqual(corsOf(refused), []);
      t.is(refused.headers.get('vary'), 'Origin');
    }
  }
});

test('a page uploads by presigned URL and by form, and reads the answer', async (t) => {
  const { api, user, ways } = t.context;
  for (const [index, way] of ways.entries()) {
    const put = await fetch(await presign(user, 'PUT', `put-${index}`, way), {
      ...{ method: 'PUT', body: 'put' },
      headers: { origin: PAGE },
    });
    t.deepEqual([put.status, put.headers.get('access-control-allow-origin')], [200, PAGE]);
    const key = `form-${index}`;
    const form = { conditions: [{ key }], fields: { key }, s3Url: way };
    const posted = await postForm(user, { ...form, origin: PAGE });
    t.deepEqual([posted.status, posted.headers.get('access-control-allow-origin')], [204, PAGE]);
    t.regex(posted.headers.get('access-control-expose-headers') ?? '', /ETag/u);
    const foreign = await postForm(user, { ...form, origin: FOREIGN });
    t.deepEqual([foreign.status, foreign.headers.get('access-control-allow-origin')], [204, null]);
  }
  const objects = new ObjectClient(user.s3Url, api.key);
  t.is((await objects.get(user.disk, 'form-2')).text, 'contents');
});

test('a page reads a shared file only of a disk that allows its origin', async (t) => {
  const { stack, api, user, closed } = t.context;
  const [link, other] = [
    await share(api, user.disk, 'film.mp4'),
    await share(api, closed, 'film.mp4'),
  ];
  const read = await getPart(link, PAGE);
  t.is(await read.text(), 'cont');
  t.is(read.headers.get('access-control-allow-origin'), PAGE);
  t.is((await preflight(link, PAGE, 'GET')).status, 204);
  t.deepEqual(corsOf(await getPart(link, FOREIGN)), []);
  t.deepEqual(corsOf(await getPart(other, PAGE)), []);
  const forged = forgeLink(stack, { diskId: user.disk }, { key: 'x'.repeat(32) });
  for (const [url, origin] of [
    [link, FOREIGN],
    [other, PAGE],
    [forged, PAGE],
  ] as const) {
    const refused = await preflight(url, origin, 'GET');
    t.is(refused.status, 403);
    t.deepEqual(corsOf(refused), []);
  }
});

test('after the disk is deleted nothing is left that names it', async (t) => {
  const { api, stack } = t.context;
  const { id } = await createDisk(api, { allowedOrigins: [PAGE] });
  await api.call('DELETE', `/api/disks/${id}`);
  t.is((await preflight(`${stack.baseUrl}/${id}/key`, PAGE)).status, 403);
  const redis = await stack.redisClient();
  t.deepEqual(await redis.keys(`*${id}*account*`), []);
});
