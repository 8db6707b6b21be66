/* The session of the console counts for its own page, and for nobody else. */
import { randomBytes } from 'node:crypto';
import { IncomingMessage, request as httpRequest } from 'node:http';
import { Socket } from 'node:net';
import { text } from 'node:stream/consumers';
import { once } from 'node:events';
import { ConsoleSessions } from '../../../../control/site/console/console-sessions.ts';
import { SITE_LIMITS } from '../../../../control/site/limits.ts';
import { stackTest } from '../../../helpers/stack-test.ts';
import { createDisk } from '../../../helpers/disks.ts';
import { s3UrlOf } from '../../../helpers/objects.ts';
import { waitFor } from '../../../helpers/wait.ts';

const test = stackTest();

const PAGE = { 'x-berth-console': '1' };

/** Sends a request with headers that `fetch` does not let a program set. */
async function call(
  baseUrl: string,
  method: string,
  path: string,
  headers: Record<string, string>,
): Promise<{ status: number; cookie: string; body: string; headers: IncomingMessage['headers'] }> {
  const sent = httpRequest(`${baseUrl}${path}`, { method, headers, agent: false });
  sent.end();
  const [answer] = (await once(sent, 'response')) as [IncomingMessage];
  const cookie = answer.headers['set-cookie']?.[0] ?? '';
  const { statusCode: status = 0, headers: given } = answer;
  return { status, cookie, body: await text(answer), headers: given };
}

test('a session opens API and objects for the own page, and for no other origin', async (t) => {
  const { api, stack } = t.context;
  const { baseUrl } = stack;
  const { id } = await createDisk(api);
  const begun = await call(baseUrl, 'POST', '/console/session', {
    ...PAGE,
    authorization: `Bearer ${api.key}`,
  });
  t.is(begun.status, 200);
  t.regex(begun.cookie, /^berth-session=\S+; Max-Age=43200; Path=\/; HttpOnly; SameSite=Strict$/u);
  const [cookie = ''] = begun.cookie.split(';');
  const own = { cookie, ...PAGE };
  const paths = [`/api/disks/${id}`, `/${id}?list-type=2`];
  for (const path of paths) {
    t.is((await call(baseUrl, 'GET', path, own)).status, 200, path);
    t.is((await call(baseUrl, 'GET', path, { ...own, origin: baseUrl })).status, 200, path);
    const refused: Record<string, string>[] = [
      { cookie },
      { ...own, origin: 'http://evil.example' },
      { ...own, origin: 'null' },
      { ...own, origin: baseUrl.replace('127.0.0.1', '8080-box.sbx.localhost') },
      { ...own, origin: baseUrl.replace(/:\d+$/u, ':1') },
      { ...own, 'sec-fetch-site': 'same-site' },
      { ...own, 'sec-fetch-site': 'cross-site' },
      { ...own, cookie: cookie.replace('=', '=A') },
    ];
    for (const headers of refused) {
      const { status } = await call(baseUrl, 'GET', path, headers);
      t.true(status === 401 || status === 403, `${path} ${JSON.stringify(headers)}: ${status}`);
    }
  }
  const other = await call(baseUrl, 'POST', '/console/session', {
    ...{ ...PAGE, authorization: `Bearer ${api.key}`, origin: 'http://evil.example' },
  });
  t.is(other.status, 403);
  t.is(other.cookie, '');
});

test('the page runs no script but its own, and connects to control and the hosts alone', async (t) => {
  const { baseUrl, environment } = t.context.stack;
  const { headers, body } = await call(baseUrl, 'GET', '/console/disks/anything', {});
  const policy = String(headers['content-security-policy']);
  t.true(policy.includes("default-src 'none'; script-src 'self';"), policy);
  const host = environment['AGENT_PUBLIC_URL']?.replace('http', 'ws');
  t.true(policy.includes(`connect-src 'self' ${host};`), policy);
  t.notRegex(body, /<script(?![^>]*\bsrc=)/u);
  t.is((await call(baseUrl, 'GET', '/console/assets/nothing.js', {})).status, 404);
});

function requestWith(cookie: string): IncomingMessage {
  const request = new IncomingMessage(new Socket());
  request.rawHeaders = ['Host', 'berth.example', 'Cookie', cookie, 'X-Berth-Console', '1'];
  request.headers = { host: 'berth.example', cookie, 'x-berth-console': '1' };
  return request;
}

test('a session ends when its time is over, and holds with its own key and region alone', async (t) => {
  const cluster = { encryptionKeys: [randomBytes(32)] as const, region: 'local-test' };
  const { endedSessions: ended } = await t.context.stack.openDirectory();
  const settings = { cluster, publicBaseUrl: 'https://berth.example', ended };
  const sessions = new ConsoleSessions(settings);
  const { cookie } = sessions.begin('key-secret', 0);
  t.regex(cookie, /^__Host-berth-session=.*; Secure$/u);
  t.false(cookie.includes('secret'));
  const request = requestWith(cookie.split(';')[0] ?? '');
  t.is((await sessions.read(request, SITE_LIMITS.consoleSessionMs - 1))?.apiKey, 'key-secret');
  t.is(await sessions.read(request, SITE_LIMITS.consoleSessionMs), undefined);
  for (const other of [{ encryptionKeys: [randomBytes(32)] as const }, { region: 'local-other' }]) {
    const changed = { ...settings, cluster: { ...cluster, ...other } };
    t.is(await new ConsoleSessions(changed).read(request, 0), undefined);
  }
});

test('a cookie goes no further than control', async (t) => {
  const { endedSessions: ended } = await t.context.stack.openDirectory();
  const sessions = new ConsoleSessions({
    cluster: { encryptionKeys: [randomBytes(32)] as const, region: 'local-test' },
    publicBaseUrl: 'https://berth.example',
    ended,
  });
  const [cookie = ''] = sessions.begin('key-secret').cookie.split(';');
  const request = requestWith(`theme=dark; ${cookie}`);
  await sessions.authorize(request);
  t.deepEqual(request.rawHeaders, [
    ...['Host', 'berth.example', 'X-Berth-Console', '1'],
    ...['Authorization', 'Bearer key-secret'],
  ]);
});

test('a session that was ended is refused everywhere, and so are two cookies', async (t) => {
  const { api, stack } = t.context;
  const { baseUrl } = stack;
  const { id } = await createDisk(api);
  const other = await stack.addControl();
  await other.start();
  const otherUrl = other.environment['PUBLIC_BASE_URL'] ?? '';
  const signIn = async (): Promise<string> => {
    const headers = { ...PAGE, authorization: `Bearer ${api.key}` };
    const { cookie } = await call(baseUrl, 'POST', '/console/session', headers);
    return cookie.split(';')[0] ?? '';
  };
  const [cookie, kept] = [await signIn(), await signIn()];
  const statuses = async (sent: string): Promise<number[]> => {
    const own = { ...PAGE, cookie: sent };
    const at = [baseUrl, otherUrl].flatMap((url) => [`${url}/api/disks/${id}`, `${url}/${id}`]);
    return Promise.all(at.map(async (url) => (await call(url, 'GET', '', own)).status));
  };
  // The new node knows no host yet.
  await waitFor('both nodes', async () => (await statuses(cookie)).every((each) => each === 200));
  for (const both of [`${cookie}; ${kept}`, `${kept};${cookie}`, `${cookie}; ${cookie}`]) {
    t.deepEqual(await statuses(both), [401, 403, 401, 403]);
  }
  // A second cookie, as a page of another port could set one, keeps no session alive.
  const planted = `berth-session=x; ${cookie}`;
  const ended = await call(baseUrl, 'DELETE', '/console/session', { ...PAGE, cookie: planted });
  t.regex(ended.cookie, /Max-Age=0/u);
  await waitFor('the end to be noticed', async () => !(await statuses(cookie)).includes(200));
  t.deepEqual(await statuses(kept), [200, 200, 200, 200]);
  const shown = await call(baseUrl, 'GET', '/console/session', { ...PAGE, cookie });
  t.deepEqual(JSON.parse(shown.body), { success: true, data: null });
});

test('an HTML object runs no script, whichever tier answers', async (t) => {
  const { api, stack } = t.context;
  const { id } = await createDisk(api);
  const headers = { authorization: api.key };
  for (const url of [stack.baseUrl, s3UrlOf(stack)]) {
    for (const path of ['page.html', 'missing.html']) {
      await fetch(`${url}/${id}/page.html`, { method: 'PUT', headers, body: '<script></script>' });
      const { headers: got } = await fetch(`${url}/${id}/${path}`, { headers });
      t.is(got.get('content-security-policy'), "default-src 'none'; sandbox", `${url} ${path}`);
      t.is(got.get('x-content-type-options'), 'nosniff', `${url} ${path}`);
    }
  }
});
