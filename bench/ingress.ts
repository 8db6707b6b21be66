import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import autocannon from 'autocannon';
import { Daemon } from '../test/helpers/daemon.ts';
import { expose, hostOf, processInside } from '../test/helpers/ingress.ts';
import { freePorts } from '../test/helpers/ports.ts';
import { containerSettings, createSandbox } from '../test/helpers/sandboxes.ts';
import { hostIdOf } from '../test/helpers/host.ts';
import { Stack } from '../test/helpers/stack.ts';
import { waitFor } from '../test/helpers/wait.ts';
import { planSlot } from '../agent/network/slots/slot.ts';
import { printComparison } from './statistics.ts';

/*
 * Requests through the ingress, beside Debian's nginx as a proxy to the same server: an nginx in
 * the network of a container, so that no emulation hides the proxies. The baseline's listening
 * socket is on the host, and all else of it in the sandbox's slot, from where it connects as the
 * ingress does.
 */

const GUEST_PORT = 8080;
const GUEST = '10.255.255.2';
/** Unmeasured rounds, until what is called for each request has been compiled for speed. */
const WARM_UP = 4;
const INHERIT_PY = `
import ctypes, os, socket, sys
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(('127.0.0.1', int(sys.argv[1])))
listener.listen(511)
os.set_inheritable(listener.fileno(), True)
namespace = os.open(sys.argv[2], os.O_RDONLY)
assert ctypes.CDLL(None).setns(namespace, 0) == 0
os.environ['NGINX'] = f'{listener.fileno()};'
os.execv('/usr/sbin/nginx', ['nginx', '-c', sys.argv[3], '-e', 'stderr'])
`;

interface Figures {
  readonly perSecond: number;
  readonly p99Ms: number;
}

async function load(
  url: string,
  host: string,
  { connections, seconds }: { connections: number; seconds: number },
): Promise<Figures> {
  const result = await autocannon({ url, connections, duration: seconds, headers: { host } });
  if (result.non2xx + result.errors > 0) throw new Error(`${url}: requests failed`);
  return { perSecond: result.requests.average, p99Ms: result.latency.p99 };
}

async function writeConfig(directory: string, name: string, http: string[]): Promise<string> {
  const home = join(directory, name);
  await mkdir(home);
  const scratch = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map(
    (each) => `${each}_temp_path ${join(home, each)};`,
  );
  const config = [
    ...['user root;', 'daemon off;', 'worker_processes auto;', `pid ${join(home, 'pid')};`],
    ...['error_log stderr;', 'events { worker_connections 1024; }', 'http {', 'access_log off;'],
    ...['keepalive_requests 100000000;', ...scratch, ...http, '}'],
  ];
  const path = join(home, 'nginx.conf');
  await writeFile(path, `${config.join('\n')}\n`);
  return path;
}

async function startBackend(sandboxId: string, directory: string): Promise<Daemon> {
  const config = await writeConfig(directory, 'backend', [
    `server { listen ${GUEST_PORT}; location / { return 200 "${'x'.repeat(1024)}"; } }`,
  ]);
  const enter = ['nsenter', `--net=/proc/${await processInside(sandboxId)}/ns/net`];
  const command = [...enter, '/usr/sbin/nginx', '-c', config, '-e', 'stderr'];
  const backend = new Daemon('backend', command, {}, join(directory, 'backend.log'));
  backend.start();
  return backend;
}

async function startBaseline(port: number, namespace: string, directory: string): Promise<Daemon> {
  const config = await writeConfig(directory, 'baseline', [
    `upstream guest { server ${GUEST}:${GUEST_PORT}; keepalive 256; }`,
    `server { listen 127.0.0.1:${port}; location / {`,
    ...['proxy_pass http://guest;', 'proxy_http_version 1.1;', 'proxy_set_header Connection "";'],
    'proxy_set_header Host $host; proxy_set_header X-Forwarded-For $remote_addr; } }',
  ]);
  const command = ['python3', '-c', INHERIT_PY, String(port), namespace, config];
  const baseline = new Daemon('baseline', command, {}, join(directory, 'baseline.log'));
  baseline.start();
  return baseline;
}

const isServed = async (url: string): Promise<boolean> =>
  (await fetch(url).catch(() => undefined))?.ok === true;

async function measure(
  urls: { ours: string; baseline: string },
  host: string,
  options: { rounds: number; seconds: number; connections: number },
): Promise<void> {
  const rates = { ours: [] as number[], baseline: [] as number[] };
  const tails = { ours: [] as number[], baseline: [] as number[] };
  for (let round = -WARM_UP; round < options.rounds; round += 1) {
    for (const side of ['ours', 'baseline'] as const) {
      const { perSecond, p99Ms } = await load(urls[side], host, options);
      if (round < 0) continue;
      rates[side].push(perSecond);
      tails[side].push(p99Ms);
    }
  }
  const names = { ours: 'ingress', baseline: 'nginx' };
  const about = `${options.connections} connections, ${options.rounds} rounds of ${options.seconds} s`;
  printComparison(`requests, ${about}`, rates, names, { unit: '/s', target: '≥ 0.50' });
  printComparison(`p99, ${about}`, tails, names, { unit: 'ms', target: '≤ 2.00' });
}

/** Flags: rounds, seconds of each, connections. */
export async function benchIngress(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      rounds: { type: 'string', default: '5' },
      seconds: { type: 'string', default: '3' },
      connections: { type: 'string', default: '64' },
    },
  });
  const [port = 0, baselinePort = 0] = await freePorts(2);
  const settings = { INGRESS_PORT: String(port), LOG_LEVEL: 'warn' };
  const stack = await Stack.start({ ...containerSettings(), ...settings });
  const daemons: Daemon[] = [];
  try {
    const api = await stack.newClient();
    const { sandbox_id: id } = await createSandbox(api);
    await expose(api, id, GUEST_PORT);
    const { namespace } = planSlot(await hostIdOf(stack.environment), 0);
    daemons.push(await startBackend(id, stack.directory));
    daemons.push(await startBaseline(baselinePort, `/run/netns/${namespace}`, stack.directory));
    const host = hostOf(GUEST_PORT, id);
    const urls = {
      ours: `http://127.0.0.1:${port}/`,
      baseline: `http://127.0.0.1:${baselinePort}/`,
    };
    await waitFor('nginx', () => isServed(urls.baseline));
    await measure(urls, host, {
      rounds: Number(values.rounds),
      seconds: Number(values.seconds),
      connections: Number(values.connections),
    });
  } finally {
    await Promise.all(daemons.map((daemon) => daemon.stop()));
    await stack.stop();
  }
}
