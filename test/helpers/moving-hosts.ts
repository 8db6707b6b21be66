import { readFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { randomBytes } from 'node:crypto';
import type { Host } from '../../shared/schemas/host.ts';
import { detectCgroups, killGroup, processesBelow } from '../../agent/system/cgroup.ts';
import type { ApiClient } from './api.ts';
import type { Environment } from './daemon.ts';
import { sandboxSettings } from './sandboxes.ts';
import type { Stack, StackNode } from './stack.ts';
import { waitFor } from './wait.ts';

/** A directory for the sandboxes of all hosts of a stack; the test removes it. */
export const newSandboxDir = (): string =>
  join(tmpdir(), `berth-test-moving-${randomBytes(4).toString('hex')}`);

/** Settings of agents that share their sandboxes' storage. */
export const movingSettings = (directory: string): Environment => ({
  ...sandboxSettings(),
  SANDBOX_DIR: directory,
});

const idOf = async ({ environment }: StackNode): Promise<string> =>
  (await readFile(join(environment['AGENT_DATA_DIR'] ?? '', 'host-id'), 'utf8')).trim();

const cgroups = await detectCgroups();
const KILLED_WITHIN_MS = 20_000;

const groupOf = async (node: StackNode): Promise<string> =>
  `${node.environment['AGENT_CGROUP']}/${await idOf(node)}`;

/** Everything that runs on a host: its agent, and its machines with what belongs to them. */
export const processesOf = async (node: StackNode): Promise<number[]> => [
  node.daemon.pid,
  ...(await processesBelow(cgroups, await groupOf(node))),
];

/** Ends everything that runs on a host, as a loss of power does. */
export async function losePower(node: StackNode): Promise<void> {
  const group = await groupOf(node);
  await node.daemon.stop('SIGKILL');
  await killGroup(cgroups, group, KILLED_WITHIN_MS);
}

/** Two hosts and an operator of them. */
interface MovingHosts {
  readonly operator: ApiClient;
  readonly nodes: readonly [StackNode, StackNode];
  readonly ids: readonly [string, string];
}

export async function addSecondHost(
  stack: Stack,
  settings: Environment = {},
): Promise<MovingHosts> {
  const second = await stack.addAgent(settings);
  await second.start();
  const operator = await stack.newClient(['operator']);
  const [first] = stack.agents;
  if (first === undefined) throw new Error('the stack has no agent');
  const nodes = [first, second] as const;
  await waitFor('both hosts', async () => (await listHosts(operator)).length === 2);
  return { operator, nodes, ids: [await idOf(first), await idOf(second)] };
}

const listHosts = (api: ApiClient): Promise<Host[]> => api.data('GET', '/api/hosts');

export const order = (api: ApiClient, id: string, verb: string): Promise<Host> =>
  api.data('POST', `/api/hosts/${id}/${verb}`);

/** The host that has a sandbox, as the directory tells. */
export async function hostOf(stack: Stack, sandboxId: string): Promise<string | undefined> {
  const { accounts, sandboxes } = await stack.openDirectory();
  for (const { id } of await accounts.list()) {
    const record = await sandboxes.get(id, sandboxId);
    if (record !== undefined) return record.hostId;
  }
  return undefined;
}

/** Waits until a host has the sandbox. */
export const untilAt = (stack: Stack, sandboxId: string, hostId: string): Promise<unknown> =>
  waitFor(
    `${sandboxId} at ${hostId}`,
    async () => (await hostOf(stack, sandboxId)) === hostId,
    60_000,
  );
