/*
 * A cluster of three hosts, made as docs/operations.md says, with TLS everywhere, behind haproxy.
 */
import { once } from 'node:events';
import type { IncomingMessage } from 'node:http';
import { request } from 'node:https';
import { text } from 'node:stream/consumers';
import anyTest, { type TestFn } from 'ava';
import type { ApiClient } from '../helpers/api.ts';
import { TestCluster } from '../helpers/cluster.ts';
import { createDisk, exec } from '../helpers/disks.ts';
import { expose, hostOf } from '../helpers/ingress.ts';
import { ObjectClient } from '../helpers/objects.ts';
import {
  type ApiSandbox,
  containerSettings,
  createSandbox,
  execIn,
  removeSandbox,
} from '../helpers/sandboxes.ts';
import { connectionUrl, runAttached } from '../helpers/test-connection.ts';
import { waitFor } from '../helpers/wait.ts';

interface Context {
  readonly cluster: TestCluster;
  readonly api: ApiClient;
  /** May see the hosts. */
  readonly operator: ApiClient;
}
const test = anyTest.serial as TestFn<Context>;

const HOSTS = 3;

test.before(async (t) => {
  const agentSettings = { ...containerSettings(), EXEC_SLOTS: '8' };
  const cluster = await TestCluster.start({ agents: HOSTS, agentSettings });
  Object.assign(t.context, { cluster });
  Object.assign(t.context, {
    api: await cluster.newClient(),
    operator: await cluster.newClient(['operator']),
  });
});

test.after.always(async (t) => {
  await (t.context as Partial<Context>).cluster?.stop();
});

/** Whether every host says that it has some of it. */
async function isOnAll(
  operator: ApiClient,
  figure: 'execsRunning' | 'sandboxesActive',
): Promise<boolean> {
  const hosts = await operator.data<Record<typeof figure, number>[]>('GET', '/api/hosts');
  return hosts.length === HOSTS && hosts.every((host) => host[figure] > 0);
}

test('commands run on every host, and objects are written while they do', async (t) => {
  const { cluster, api, operator } = t.context;
  const disks = await Promise.all(Array.from({ length: 3 * HOSTS }, () => createDisk(api)));
  const command = 'until [ -e go ]; do sleep 0.1; done; cat go';
  const running = Promise.all(disks.map(({ id }) => exec(api, id, command)));
  running.catch(() => undefined); // When what follows fails, they end with the hosts.
  await waitFor('commands on every host', () => isOnAll(operator, 'execsRunning'));
  const objects = new ObjectClient(cluster.baseUrl, api.key);
  for (const { id } of disks) {
    t.is((await objects.put(id, 'go', id)).status, 200);
    t.is((await objects.get(id, 'go')).text, id);
  }
  const outputs = (await running).map(({ stdout }) => stdout);
  t.deepEqual(
    outputs,
    disks.map(({ id }) => id),
  );
});

test('each host serves objects of every disk at its own address', async (t) => {
  const { cluster, api } = t.context;
  const { id } = await createDisk(api);
  t.is((await exec(api, id, 'printf content > file')).exitCode, 0);
  for (const { machine } of cluster.agents) {
    const objects = new ObjectClient(`https://${machine.address}:8710`, api.key);
    t.is((await objects.get(id, 'file')).text, 'content', machine.name);
  }
});

/** Asks the ingress of a host for a port of a sandbox. */
async function askPort(address: string, host: string): Promise<string> {
  const sent = request({
    ...{ host: address, port: 8712, servername: host, agent: false },
    headers: { host },
  });
  sent.end();
  const [answer] = (await once(sent, 'response')) as [IncomingMessage];
  return `${answer.statusCode} ${await text(answer)}`;
}

test('sandboxes run on every host, with their commands, sessions and ports', async (t) => {
  const { cluster, api, operator } = t.context;
  const addresses = cluster.agents.map(({ machine }) => machine.address);
  const sandboxes: ApiSandbox[] = [];
  await waitFor('sandboxes on every host', async () => {
    sandboxes.push(await createSandbox(api));
    return isOnAll(operator, 'sandboxesActive');
  });
  const owners = new Set<string>();
  for (const { sandbox_id: id } of sandboxes) {
    t.is((await execIn(api, id, 'printf ran')).stdout, 'ran');
    const { protocol, hostname } = new URL(await connectionUrl(api, id));
    t.is(protocol, 'wss:');
    owners.add(hostname);
    t.is((await runAttached(api, id, 'printf in-session')).text, 'in-session');
  }
  t.deepEqual([...owners].sort(), addresses.sort(), 'sessions lead to the owning host');

  const id = sandboxes[0]?.sandbox_id ?? '';
  const serve = 'cd /etc && setsid python3 -m http.server 8080 > /dev/null 2>&1 < /dev/null &';
  t.is((await execIn(api, id, serve)).exit_code, 0);
  await expose(api, id, 8080);
  for (const address of addresses) {
    const seen = await waitFor('the port', async () => {
      const answer = await askPort(address, hostOf(8080, id));
      return answer.startsWith('200') && answer;
    });
    t.regex(seen, /os-release/u, 'by way of each host');
  }
  await Promise.all(sandboxes.map(({ sandbox_id }) => removeSandbox(api, sandbox_id)));
});

test('a host whose cable was pulled is taken back when it is there again', async (t) => {
  const { cluster, operator } = t.context;
  const [agent] = cluster.agents;
  t.truthy(agent);
  const states = async (): Promise<string[]> => {
    const hosts = await operator.data<{ state: string }[]>('GET', '/api/hosts');
    return hosts.map(({ state }) => state).sort();
  };
  await agent?.machine.cutOff();
  await waitFor('the host to be away', async () => (await states()).includes('away'));
  await agent?.machine.reconnect();
  await waitFor('it to be back', async () => !(await states()).includes('away'));
});
