/* The configurations of docs/proxies.md, each in front of a real stack. */
import { once } from 'node:events';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import type { IncomingMessage } from 'node:http';
import { request } from 'node:https';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { TestAuthority } from '../helpers/certificates.ts';
import { Daemon } from '../helpers/daemon.ts';
import { freePorts } from '../helpers/ports.ts';
import { presign } from '../helpers/presign.ts';
import { documentedProxy } from '../helpers/proxies.ts';
import { stackTest } from '../helpers/stack-test.ts';
import { newDiskUser } from '../helpers/tools.ts';
import { waitFor } from '../helpers/wait.ts';
import { MiB } from '../../shared/units.ts';

const ALLOWED = '127.0.0.2';
const OTHER = '127.0.0.3';
const LONG = Buffer.alloc(12 * MiB, 'x'); // More than a proxy's usual bound.

const test = stackTest({ TRUSTED_PROXIES: '127.0.0.1' });

interface Place {
  readonly directory: string;
  readonly port: number;
  readonly controlPort: string;
}

/** The documented text with the test's addresses and files; the second control node is left out. */
const localised = (text: string, { directory, port, controlPort }: Place): string =>
  text
    .replace(/^.*10\.0\.0\.2.*\n/mu, '')
    .replace('10.0.0.1:8700', `127.0.0.1:${controlPort}`)
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
} as const;

for (const name of Object.keys(PROXIES) as (keyof typeof PROXIES)[]) {
  test(`behind ${name} as documented, callers are known by their own address`, async (t) => {
    const { stack, api } = t.context;
    const directory = join(stack.directory, name); // They are tried at the same time.
    await mkdir(directory);
    const authority = await TestAuthority.create('proxy');
    await authority.issue(directory, 'control');
    const [port = 0] = await freePorts(1);
    const controlPort = stack.environment['CONTROL_PORT'] ?? '';
    const command = await PROXIES[name]({ directory, port, controlPort });
    const proxy = new Daemon(name, command, {}, join(directory, `${name}.log`));
    proxy.start();
    const send = async (
      [method, url]: readonly [string, string],
      { from = ALLOWED, said, body }: { from?: string; said?: string; body?: Buffer } = {},
    ): Promise<{ status: number | undefined; body: Buffer }> => {
      const sent = request(url, {
        ...{ method, agent: false, localAddress: from, ca: authority.certificate },
        headers: said === undefined ? {} : { 'x-forwarded-for': said },
      });
      sent.end(body);
      const [answer] = (await once(sent, 'response')) as [IncomingMessage];
      return { status: answer.statusCode, body: await buffer(answer) };
    };
    try {
      const s3Url = `https://127.0.0.1:${port}`;
      await waitFor(name, async () => {
        const answer = await send(['GET', `${s3Url}/readyz`]).catch(() => undefined);
        return answer?.status === 200;
      });
      // Signatures hold only if path, query and Host arrive as they were sent.
      const user = await newDiskUser(stack, api, { allowedIps: [ALLOWED] });
      const sign = (method: string, key: string): Promise<string> =>
        presign(user, method, key, s3Url);
      const key = 'a b/ü+%2F';
      t.is((await send(['PUT', await sign('PUT', key)], { body: LONG })).status, 200);
      t.true((await send(['GET', await sign('GET', key)])).body.equals(LONG));
      for (const said of [undefined, ALLOWED, `${ALLOWED}, 127.0.0.1`]) {
        const forged = { from: OTHER, ...(said === undefined ? {} : { said }) };
        const answer = await send(['GET', await sign('GET', key)], forged);
        t.is(answer.status, 403, String(said));
        t.regex(answer.body.toString(), new RegExp(`not open to ${OTHER}`, 'u'));
      }
    } finally {
      await proxy.stop();
    }
  });
}
