/* The configurations of docs/proxies.md, each in front of a real stack. */
import { once } from 'node:events';
import { mkdtemp, readFile, writeFile } from 'node:fs/promises';
import { createServer, type IncomingMessage } from 'node:http';
import { request } from 'node:https';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import tls from 'node:tls';
import { buffer } from 'node:stream/consumers';
import { TestAuthority } from '../helpers/certificates.ts';
import { Daemon } from '../helpers/daemon.ts';
import { freePorts } from '../helpers/ports.ts';
import { presign } from '../helpers/presign.ts';
import { documentedProxy } from '../helpers/proxies.ts';
import { containerSettings, createSandbox, execIn, sandboxPath } from '../helpers/sandboxes.ts';
import { connectionUrl, TestConnection } from '../helpers/test-connection.ts';
import type { Stack } from '../helpers/stack.ts';
import { stackTest } from '../helpers/stack-test.ts';
import { newDiskUser } from '../helpers/tools.ts';
import { waitFor } from '../helpers/wait.ts';
import { MiB } from '../../shared/units.ts';

const ALLOWED = '127.0.0.2';
const OTHER = '127.0.0.3';
const LONG = Buffer.alloc(12 * MiB, 'x'); // More than a proxy's usual bound.

const settings = { ...containerSettings(), TRUSTED_PROXIES: '127.0.0.1' };
const test = stackTest(settings, async ({ api }) => {
  const authority = await TestAuthority.create('proxy');
  tls.setDefaultCACertificates([...tls.getCACertificates('default'), authority.certificate]);
  const { sandbox_id: sandboxId } = await createSandbox(api);
  return { authority, sandboxId };
});

interface Place {
  readonly directory: string;
  readonly port: number;
  readonly stack: Pick<Stack, 'directory' | 'environment'>;
  readonly target: 'CONTROL_PORT' | 'AGENT_PORT';
}

/**
 * The documented text with the test's addresses and files. The second node is left out, and before
 * an agent the look at /readyz, which agents have at another port.
 */
const localised = (text: string, { directory, port, stack, target }: Place): string =>
  text
    .replace(/^.*10\.0\.0\.2.*\n/mu, '')
    .replace(target === 'AGENT_PORT' ? /^.*readyz.*\n/mu : '', '')
    .replace('10.0.0.1:8700', `127.0.0.1:${stack.environment[target]}`)
    .replace('listen 443 ssl', `listen 127.0.0.1:${port} ssl`)
    .replace('bind :443', `bind 127.0.0.1:${port}`)
    .replaceAll(/\/etc\/(?:nginx|haproxy)\//gu, `${directory}/`);

const PROXIES = {
  nginx: async (place: Place): Promise<string[]> => {
    const { directory } = place;
    const file = join(directory, 'nginx.conf');
    const own = localised(await documentedProxy('nginx'), place);
    const paths = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map(
      (name) => `${name}_temp_path ${directory}/${name};`,
    );
    const main = `user root; daemon off; pid ${directory}/nginx.pid; events {}`;
    await writeFile(file, `${main} http { access_log off; ${paths.join(' ')}\n${own}}`);
    return ['/usr/sbin/nginx', '-c', file, '-e', 'stderr'];
  },
  haproxy: async (place: Place): Promise<string[]> => {
    const { directory } = place;
    const file = join(directory, 'haproxy.cfg');
    const [cert, key] = await Promise.all(
      ['control.pem', 'control.key'].map((name) => readFile(join(directory, name), 'utf8')),
    );
    await writeFile(join(directory, 'control.pem'), `${cert}\n${key}`);
    await writeFile(file, localised(await documentedProxy('haproxy'), place));
    return ['/usr/sbin/haproxy', '-db', '-f', file];
  },
  caddy: async (place: Place): Promise<string[]> => {
    const { directory, port } = place;
    const file = join(directory, 'Caddyfile');
    const certificate = `tls ${directory}/control.pem ${directory}/control.key`; // Instead of ACME.
    const text = localised(await documentedProxy('caddy'), place)
      .replace('berth.example.com {', `https://127.0.0.1:${port} {\n    ${certificate}`)
      .replace('grace_period 300s', 'grace_period 1s')
      .replace('{', `{ \n    admin off\n    auto_https disable_redirects`);
    await writeFile(file, text);
    return ['/usr/bin/env', `HOME=${directory}`, 'caddy', 'run', '--config', file];
  },
} as const;

type ProxyName = keyof typeof PROXIES;

/** A proxy that runs, in front of a port of the stack. */
async function startProxy(
  name: ProxyName,
  { stack, authority }: { readonly stack: Place['stack']; readonly authority: TestAuthority },
  target: Place['target'],
): Promise<AsyncDisposable & { readonly url: string }> {
  const directory = await mkdtemp(join(stack.directory, `${name}-`));
  await authority.issue(directory, 'control');
  const [port = 0] = await freePorts(1);
  const command = await PROXIES[name]({ stack, directory, port, target });
  const proxy = new Daemon(name, command, {}, join(directory, `${name}.log`));
  proxy.start();
  const url = `https://127.0.0.1:${port}`;
  const started = { url, [Symbol.asyncDispose]: async () => void (await proxy.stop()) };
  try {
    await waitFor(name, async () => {
      if (!proxy.isRunning) throw new Error(`${name} ended: ${await proxy.readLog()}`);
      const answer = await fetch(`${url}/readyz`).catch(() => undefined);
      // An agent has no such path there, and says so itself.
      return answer !== undefined && answer.status !== 502 && answer.status !== 503;
    });
    return started;
  } catch (error) {
    await started[Symbol.asyncDispose]();
    throw error;
  }
}

for (const name of Object.keys(PROXIES) as ProxyName[]) {
  test(`behind ${name} as documented, callers are known by their own address`, async (t) => {
    const { stack, api, authority } = t.context;
    await using proxy = await startProxy(name, { stack, authority }, 'CONTROL_PORT');
    const send = async (
      [method, url]: readonly [string, string],
      { from = ALLOWED, said, body }: { from?: string; said?: string; body?: Buffer } = {},
    ): Promise<{ status: number | undefined; body: Buffer }> => {
      const sent = request(url, {
        ...{ method, agent: false, localAddress: from },
        headers: said === undefined ? {} : { 'x-forwarded-for': said },
      });
      sent.end(body);
      const [answer] = (await once(sent, 'response')) as [IncomingMessage];
      return { status: answer.statusCode, body: await buffer(answer) };
    };
    // Signatures hold only if path, query and Host arrive as they were sent.
    const user = await newDiskUser(stack, api, { allowedIps: [ALLOWED] });
    const sign = (method: 'GET' | 'PUT', key: string): Promise<string> =>
      presign(user, method, key, proxy.url);
    const key = 'a b/ü+%2F';
    t.is((await send(['PUT', await sign('PUT', key)], { body: LONG })).status, 200);
    t.true((await send(['GET', await sign('GET', key)])).body.equals(LONG));
    for (const said of [undefined, ALLOWED, `${ALLOWED}, 127.0.0.1`]) {
      const forged = { from: OTHER, ...(said === undefined ? {} : { said }) };
      const answer = await send(['GET', await sign('GET', key)], forged);
      t.is(answer.status, 403, String(said));
      t.regex(answer.body.toString(), new RegExp(`not open to ${OTHER}`, 'u'));
    }
  });

  test(`behind ${name} as documented, bodies, events and WebSockets pass as they come`, async (t) => {
    const { stack, api, authority, sandboxId } = t.context;
    await using control = await startProxy(name, { stack, authority }, 'CONTROL_PORT');
    const headers = { authorization: `Bearer ${api.key}` };
    const files = `${control.url}${sandboxPath(sandboxId)}/files`;
    const watched = await fetch(`${files}/watch?path=/root`, { headers });
    t.is(watched.headers.get('content-type'), 'text/event-stream');
    const events = watched.body?.pipeThrough(new TextDecoderStream()).getReader();
    const read = async (what: string): Promise<void> => {
      let text = '';
      while (!text.includes(what)) text += (await events?.read())?.value ?? '';
    };
    const upload = request(`${files}?path=/root/${name}`, { method: 'PUT', headers, agent: false });
    const answered = once(upload, 'response') as Promise<[IncomingMessage]>;
    upload.write('first'); // Without a length: in chunks.
    upload.end('last');
    t.true(((await answered)[0].statusCode ?? 0) < 300);
    await read(name); // While the stream goes on.
    t.is((await execIn(api, sandboxId, `cat /root/${name}`)).stdout, 'firstlast');
    await events?.cancel();

    await using agent = await startProxy(name, { stack, authority }, 'AGENT_PORT');
    const url = new URL(await connectionUrl(api, sandboxId));
    const session = new TestConnection(
      `wss://${new URL(agent.url).host}${url.pathname}${url.search}`,
    );
    await session.until(() => session.socket.readyState === session.socket.OPEN);
    session.say({ type: 'start', command: 'cat', env: {} });
    await session.until(() => session.processId !== '');
    session.write('echoed');
    await session.until(() => session.text.includes('echoed'));
    session.say({ type: 'close_stdin' });
    await session.end();
    t.pass();
  });
}

test('haproxy as documented says what may have become of a call whose node died', async (t) => {
  const { stack, authority } = t.context;
  const asked: string[] = [];
  const dying = createServer((call, answer) => {
    if (call.url === '/readyz') return answer.end();
    asked.push(call.method ?? '');
    const isRepeated = asked.filter((method) => method === 'GET').length > 1;
    return isRepeated ? answer.end('[]') : call.socket.destroy();
  });
  t.teardown(() => dying.close()); // Open, it would keep the process of a test that failed.
  await once(dying.listen(0, '127.0.0.1'), 'listening');
  const environment = { CONTROL_PORT: String((dying.address() as AddressInfo).port) };
  const place = { stack: { directory: stack.directory, environment }, authority };
  await using proxy = await startProxy('haproxy', place, 'CONTROL_PORT');
  const answer = await fetch(`${proxy.url}/api/disks`, { method: 'POST', body: '{}' });
  t.is(answer.status, 502);
  t.deepEqual(await answer.json(), {
    success: false,
    error: 'the control node ended before it answered; the call may have been carried out',
  });
  const read = await fetch(`${proxy.url}/api/disks`);
  t.deepEqual([read.status, await read.text()], [200, '[]'], 'a read is repeated');
  t.deepEqual(asked, ['POST', 'GET', 'GET']);
});
