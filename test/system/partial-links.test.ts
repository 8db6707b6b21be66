/* A region with more hosts than its control nodes want to know (docs/decisions/0102). */
import assert from 'node:assert';
import { readFile } from 'node:fs/promises';
import anyTest, { type TestFn } from 'ava';
import { chooseNodes } from '../../agent/control-link/chosen-nodes.ts';
import { paths } from '../../agent/system/paths.ts';
import type { ControlNode } from '../../shared/directory/control-nodes.ts';
import type { Directory } from '../../shared/directory/directory.ts';
import { ApiClient } from '../helpers/api.ts';
import { createDisk, exec } from '../helpers/disks.ts';
import { Stack, type StackNode } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';

const test = anyTest as TestFn<{ stack: Stack; directory: Directory }>;

/** A host has at least every second node: among so many there surely is one that it has not. */
const NODES_MAX = 20;
const DISKS_MAX = 40;

test.before(async (t) => {
  // Two hosts where each node wants one.
  const stack = await Stack.start({ CONTROL_LINKED_HOSTS: '1' });
  Object.assign(t.context, { stack });
  await (await stack.addAgent()).start();
  Object.assign(t.context, { directory: await stack.openDirectory() });
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

const internalPortOf = ({ environment }: StackNode): string =>
  environment['CONTROL_INTERNAL_PORT'] ?? '';

/** How many hosts are linked to a node. */
async function linkedTo(node: StackNode): Promise<number> {
  const metrics = await fetch(`http://127.0.0.1:${internalPortOf(node)}/metrics`);
  const counts = (await metrics.text()).matchAll(/^berth_linked_hosts\{.*\} (\d+)$/gmu);
  return [...counts].reduce((sum, [, count]) => sum + Number(count), 0);
}

function idOf(node: StackNode, nodes: readonly ControlNode[]): string {
  const isOfNode = ({ linkUrl }: ControlNode) => linkUrl.includes(`:${internalPortOf(node)}/`);
  const id = nodes.find(isOfNode)?.nodeId;
  assert(id !== undefined);
  return id;
}

/**
 * The nodes that have a host for new disks: later ones can have taken all hosts of an earlier one.
 */
async function placingNodes({ controls }: Stack, directory: Directory): Promise<StackNode[]> {
  const nodes = await directory.controlNodes.live();
  const hosts = await directory.hosts.list();
  const chosen = new Set(hosts.flatMap(({ hostId }) => [...chooseNodes(hostId, nodes)]));
  return controls.filter((node) => chosen.has(idOf(node, nodes)));
}

/**
 * Adds nodes until one is there that a host does not link to, and waits for the links of the
 * others.
 */
async function addUnchosenNode(stack: Stack, directory: Directory) {
  for (let count = 1; count < NODES_MAX; count += 1) {
    const node = await stack.addControl();
    await node.start();
    const nodes = await waitFor('the shares of all nodes', async () => {
      const live = await directory.controlNodes.live();
      const areSettled = live.every(({ linkShare }) => linkShare === 0.5);
      return areSettled && live.length === stack.controls.length ? live : undefined;
    });
    const hosts = (await directory.hosts.list()).map(({ hostId }) => hostId);
    const chosen = hosts.filter((hostId) => chooseNodes(hostId, nodes).has(idOf(node, nodes)));
    await waitFor('the chosen links', async () => (await linkedTo(node)) === chosen.length);
    const unlinked = hosts.find((hostId) => !chosen.includes(hostId));
    if (unlinked !== undefined) return { node, hostId: unlinked, linked: chosen.length };
  }
  throw new Error('each host links to all nodes');
}

/**
 * A disk that is handled by the host: made through the nodes in turn, some of which know the host.
 */
async function diskOf(
  hostId: string,
  apis: readonly ApiClient[],
  directory: Directory,
): Promise<string> {
  for (let count = 0; count < DISKS_MAX; count += 1) {
    const api = apis[count % apis.length];
    assert(api !== undefined);
    const { diskId } = await createDisk(api);
    await exec(api, diskId, 'echo kept > file');
    const { id: accountId } = (await directory.accounts.list())[0] ?? { id: '' };
    const entry = await directory.disks.get(accountId, diskId);
    if (entry?.leaseHolder === hostId) return diskId;
  }
  throw new Error('the host gets no disk');
}

const hostIdOf = async ({ environment }: StackNode): Promise<string> =>
  (await readFile(paths.hostId(environment['AGENT_DATA_DIR'] ?? ''), 'utf8')).trim();

async function agentOf({ agents }: Stack, hostId: string): Promise<StackNode> {
  for (const agent of agents) if ((await hostIdOf(agent)) === hostId) return agent;
  throw new Error('no agent has this host');
}

test('a call for a host that is not linked to the node links it', async (t) => {
  const { stack, directory } = t.context;
  const { key } = await stack.newClient();
  const { node, hostId, linked } = await addUnchosenNode(stack, directory);
  const clientOf = ({ environment }: StackNode): ApiClient =>
    new ApiClient(environment['PUBLIC_BASE_URL'] ?? '', key);
  const there = clientOf(node);
  const placing = await placingNodes(stack, directory);
  const others = placing.filter((each) => each !== node).map(clientOf);
  const diskId = await diskOf(hostId, others, directory);
  t.is(await linkedTo(node), linked);
  const results = await Promise.all(
    Array.from({ length: 8 }, () => exec(there, diskId, 'cat file')),
  );
  t.deepEqual(new Set(results.map(({ stdout }) => stdout)), new Set(['kept\n']));
  t.is(await linkedTo(node), linked + 1);

  // The console may open sessions on hosts that the node does not know.
  const page = await fetch(`${node.environment['PUBLIC_BASE_URL']}/console`);
  t.regex(page.headers.get('content-security-policy') ?? '', /connect-src 'self' ws:;/u);

  const agent = await agentOf(stack, hostId);
  await agent.daemon.stop('SIGKILL');
  await waitFor('the lost link', async () => (await linkedTo(node)) === linked);
  const lost = await there.call('POST', `/api/disks/${diskId}/exec`, { command: 'cat file' });
  t.like(lost, { status: 503, body: { code: 'unavailable' } });
  await agent.start();
  const { stdout } = await waitFor('the host to serve through the node again', async () =>
    exec(there, diskId, 'cat file').catch(() => undefined),
  );
  t.is(stdout, 'kept\n');
});
