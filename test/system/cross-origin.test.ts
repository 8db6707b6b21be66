/* Which pages of other origins may read answers of control and of the host's public server. */
import anyTest, { type TestFn } from 'ava';
import type { ApiClient } from '../helpers/api.ts';
import { Stack } from '../helpers/stack.ts';
import { TestConnection } from '../helpers/test-connection.ts';

const PAGE = 'https://app.example.com';
const FOREIGN = 'https://evil.example.com';

interface Context {
  readonly stack: Stack;
  readonly api: ApiClient;
  /** Base URLs of the public servers. */
  readonly open: { readonly control: string; readonly agent: string };
  readonly closed: { readonly control: string };
}
const test = anyTest as TestFn<Context>;

test.before(async (t) => {
  const stack = await Stack.start({ ALLOWED_ORIGINS: `http://localhost:5173,${PAGE}` });
  Object.assign(t.context, { stack });
  const other = await stack.addControl({ ALLOWED_ORIGINS: '' });
  await other.start();
  Object.assign(t.context, {
    api: await stack.newClient(),
    open: { control: stack.baseUrl, agent: stack.environment['AGENT_PUBLIC_URL'] },
    closed: { control: other.environment['PUBLIC_BASE_URL'] },
  });
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

/** The headers of an answer that concern other origins. */
const corsOf = ({ headers }: Response): string[] =>
  [...headers.keys()].filter((name) => name.startsWith('access-control-') || name === 'vary');

function preflight(url: string, origin: string, method = 'POST', asked = 'authorization,x-new') {
  const headers = {
    origin,
    'access-control-request-method': method,
    'access-control-request-headers': asked,
  };
  return fetch(url, { method: 'OPTIONS', headers });
}

const listOf = (response: Response, name: string): string[] =>
  (response.headers.get(name) ?? '').toLowerCase().split(', ');

test('the preflight of an allowed origin is answered with what the page may send', async (t) => {
  const { control, agent } = t.context.open;
  for (const url of [`${control}/api/disks`, `${control}/api/nothing`, `${agent}/dsk-0/key`]) {
    const response = await preflight(url, PAGE, 'PUT');
    t.is(response.status, 204, url);
    t.is(await response.text(), '');
    t.is(response.headers.get('access-control-allow-origin'), PAGE);
    t.true(listOf(response, 'access-control-allow-methods').includes('put'));
    t.is(response.headers.get('access-control-allow-headers'), 'authorization,x-new');
    t.true(Number(response.headers.get('access-control-max-age')) > 0);
    t.true(listOf(response, 'vary').includes('origin'));
    t.is(response.headers.get('access-control-allow-credentials'), null);
  }
});

test('the preflight of any other origin is refused', async (t) => {
  const { open, closed } = t.context;
  for (const [base, origin] of [
    [open.control, FOREIGN],
    [open.control, 'null'],
    [open.control, `${PAGE}.evil.test`],
    [closed.control, PAGE],
  ] as const) {
    const response = await preflight(`${base}/api/disks`, origin);
    t.is(response.status, 403, `${base} ${origin}`);
    t.is(response.headers.get('access-control-allow-origin'), null);
    const { code, error } = (await response.json()) as { code: string; error: string };
    t.is(code, 'forbidden');
    t.regex(error, /ALLOWED_ORIGINS/u);
  }
  const objects = await preflight(`${open.agent}/dsk-0000000000000000/key`, FOREIGN);
  t.is(objects.status, 403);
  t.is(objects.headers.get('access-control-allow-origin'), null);
});

test('a page of an allowed origin reads answers, failures too', async (t) => {
  const { api, open } = t.context;
  const authorization = api.key;
  for (const [path, headers, status] of [
    ['/api/disks', { authorization }, 200],
    ['/api/disks', {}, 401],
    ['/api/nothing', { authorization }, 404],
    ['/openapi.json', {}, 200],
  ] as const) {
    const response = await fetch(open.control + path, { headers: { ...headers, origin: PAGE } });
    t.is(response.status, status, path);
    t.is(response.headers.get('access-control-allow-origin'), PAGE);
    t.deepEqual(listOf(response, 'vary'), ['origin']);
    t.is(response.headers.get('access-control-allow-credentials'), null);
    const exposed = listOf(response, 'access-control-expose-headers');
    for (const name of ['etag', 'x-request-id', 'retry-after', 'content-range', 'x-ignored-fields'])
      t.true(exposed.includes(name), name);
  }
  const object = await fetch(`${open.agent}/dsk-0000000000000000/a`, { headers: { origin: PAGE } });
  t.is(object.status, 403);
  t.is(object.headers.get('access-control-allow-origin'), PAGE);
});

test('a page of another origin is served but cannot read the answer', async (t) => {
  const { api, open, closed } = t.context;
  const headers = { authorization: api.key };
  const ofForeign = { headers: { ...headers, origin: FOREIGN } };
  const foreign = await fetch(`${open.control}/api/disks`, ofForeign);
  t.is(foreign.status, 200);
  t.deepEqual(corsOf(foreign), ['vary']);
  t.deepEqual(corsOf(await fetch(`${open.control}/api/disks`, { headers })), ['vary']);
  const ofPage = { headers: { ...headers, origin: PAGE } };
  t.deepEqual(corsOf(await fetch(`${closed.control}/api/disks`, ofPage)), []);
});

test('OPTIONS that is no preflight has no method of its own', async (t) => {
  const { control } = t.context.open;
  for (const origin of [{}, { origin: PAGE }]) {
    const response = await fetch(`${control}/api/disks`, { method: 'OPTIONS', headers: origin });
    t.is(response.status, 405);
  }
});

test('a WebSocket is refused to pages of other origins', async (t) => {
  const { agent } = t.context.open;
  const url = `${agent.replace('http', 'ws')}/sandboxes/none/connection?token=none`;
  const refusalOf = async (origin?: string): Promise<number | undefined> => {
    const session = new TestConnection(url, origin);
    await session.until(() => session.closed !== undefined);
    return session.refused;
  };
  // The token is looked at only when the origin may connect.
  t.is(await refusalOf(), 401);
  t.is(await refusalOf(PAGE), 401);
  t.is(await refusalOf(new URL(agent).origin), 401);
  t.is(await refusalOf(FOREIGN), 403);
  t.is(await refusalOf('null'), 403);
});
