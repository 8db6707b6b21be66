import { join } from 'node:path';
import { Daemon } from '../test/helpers/daemon.ts';
import { expose, hostOf, processInside } from '../test/helpers/ingress.ts';
import { freePorts } from '../test/helpers/ports.ts';
import { containerSettings, createSandbox } from '../test/helpers/sandboxes.ts';
import { hostIdOf } from '../test/helpers/host.ts';
import { Stack } from '../test/helpers/stack.ts';
import { planSlot } from '../agent/network/slots/slot.ts';
import { readFlags } from './flags.ts';
import { configureNginx, type Served, serving, underLoad } from './servers.ts';
import { inTurns, printComparison } from './statistics.ts';

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
os.execv('/usr/sbin/nginx', ['nginx', *sys.argv[3:]])
`;

async function startBackend(sandboxId: string, directory: string): Promise<Daemon> {
  const args = await configureNginx(join(directory, 'backend'), 'auto', [
    `server { listen ${GUEST_PORT}; location / { return 200 "${'x'.repeat(1024)}"; } }`,
  ]);
  const enter = ['nsenter', `--net=/proc/${await processInside(sandboxId)}/ns/net`];
  const command = [...enter, '/usr/sbin/nginx', ...args];
  const backend = new Daemon('backend', command, {}, join(directory, 'backend.log'));
  backend.start();
  return backend;
}

async function startBaseline(namespace: string, directory: string): Promise<Served> {
  const [port = 0] = await freePorts(1);
  const args = await configureNginx(join(directory, 'baseline'), 'auto', [
    `upstream guest { server ${GUEST}:${GUEST_PORT}; keepalive 256; }`,
    `server { listen 127.0.0.1:${port}; location / {`,
    ...['proxy_pass http://guest;', 'proxy_http_version 1.1;', 'proxy_set_header Connection "";'],
    'proxy_set_header Host $host; proxy_set_header X-Forwarded-For $remote_addr; } }',
  ]);
  const command = ['python3', '-c', INHERIT_PY, String(port), namespace, ...args];
  const baseline = new Daemon('baseline', command, {}, join(directory, 'baseline.log'));
  return serving(baseline, `http://127.0.0.1:${port}/`);
}

/** `npm run bench -- ingress`: see docs/benchmarks.md. */
export async function benchIngress(args: readonly string[]): Promise<void> {
  const { rounds, seconds, connections } = readFlags(args, {
    rounds: 5,
    seconds: 3,
    connections: 64,
  });
  const [port = 0] = await freePorts(1);
  const settings = { INGRESS_PORT: String(port), LOG_LEVEL: 'warn' };
  await using stack = await Stack.start({ ...containerSettings(), ...settings });
  const api = await stack.newClient();
  const { sandbox_id: id } = await createSandbox(api);
  await expose(api, id, GUEST_PORT);
  const { namespace } = planSlot(await hostIdOf(stack.environment), 0);
  await using undo = new AsyncDisposableStack();
  const backend = await startBackend(id, stack.directory);
  undo.defer(async () => void (await backend.stop()));
  const baseline = undo.use(await startBaseline(`/run/netns/${namespace}`, stack.directory));
  const headers = { host: hostOf(GUEST_PORT, id) };
  const load = (url: string) => async () => {
    const result = await underLoad({ url, connections, duration: seconds, headers });
    return { perSecond: result.requests.average, p99Ms: result.latency.p99 };
  };
  const sides = { ours: load(`http://127.0.0.1:${port}/`), baseline: load(baseline.url) };
  const loads = await inTurns(rounds, sides, Math.min(rounds, WARM_UP));
  const names = { ours: 'ingress', baseline: 'nginx' };
  const of = (figure: 'perSecond' | 'p99Ms') => ({
    ours: loads.ours.map((each) => each[figure]),
    baseline: loads.baseline.map((each) => each[figure]),
  });
  const about = `${connections} connections, ${rounds} rounds of ${seconds} s`;
  const [unit, target] = ['/s', '≥ 0.50'];
  printComparison(`requests, ${about}`, of('perSecond'), names, { unit, target });
  printComparison(`p99, ${about}`, of('p99Ms'), names, { unit: 'ms', target: '≤ 2.00' });
}
