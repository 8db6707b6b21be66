/*
 * Two control nodes and two agents in one region, and a second region beside it on the same Redis.
 */
import assert from 'node:assert';
import { randomBytes } from 'node:crypto';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import anyTest, { type TestFn } from 'ava';
import { LIMITS } from '../../shared/limits.ts';
import { ApiClient, type ApiBody, type ApiReply } from '../helpers/api.ts';
import { createDisk, exec, newName } from '../helpers/disks.ts';
import { diskMount, holdersOf, processesMarked } from '../helpers/host.ts';
import { Stack, type StackNode } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';

interface Context {
  stack: Stack;
  /** Clients of one account: at each control node of the region, and at that of another region. */
  api: ApiClient;
  otherApi: ApiClient;
  farApi: ApiClient;
  agent: StackNode;
  otherAgent: StackNode;
}

const test = anyTest as TestFn<Context>;

const FAR_REGION = 'local-far';

const urlOf = ({ environment }: StackNode): string => environment['PUBLIC_BASE_URL'] ?? '';

test.before(async (t) => {
  const stack = await Stack.start();
  const [agent] = stack.agents;
  assert(agent !== undefined);
  Object.assign(t.context, { stack, agent });
  const otherControl = await stack.addControl();
  const otherAgent = await stack.addAgent();
  const far = { REGION: FAR_REGION, STORAGE_DIR: join(stack.directory, 'far-storage') };
  const farControl = await stack.addControl(far);
  const farAgent = await stack.addAgent(far);
  await Promise.all([otherControl, otherAgent, farControl, farAgent].map((node) => node.start()));
  const api = await stack.newClient();
  const otherApi = new ApiClient(urlOf(otherControl), api.key);
  const farApi = new ApiClient(urlOf(farControl), api.key);
  Object.assign(t.context, { api, otherApi, farApi, otherAgent });
  for (const { daemon } of [agent, otherAgent]) {
    await waitFor(`${daemon.name} at both nodes`, async () => {
      const found = (await daemon.readLog()).match(/link:registered/gu);
      return found !== null && found.length >= 2;
    });
  }
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

const post = (api: ApiClient, diskId: string, command: string): Promise<ApiReply<ApiBody>> =>
  api.call('POST', `/api/disks/${diskId}/exec`, { command });

/**
 * An exec with an `Idempotency-Key`, to be sent through any node; its answers come within a minute.
 */
function keyedExec(
  diskId: string,
  command: string,
): (api: ApiClient) => Promise<ApiReply<ApiBody>> {
  const headers = { 'idempotency-key': randomBytes(8).toString('hex') };
  const path = `/api/disks/${diskId}/exec`;
  return (api) => api.call('POST', path, { command }, headers, AbortSignal.timeout(60_000));
}

/** Creates a disk that is attached on this agent and idle. */
async function diskOn({ stack, api }: Context, agent: StackNode): Promise<string> {
  return waitFor(`a disk on ${agent.daemon.name}`, async () => {
    // At the same time, so that they spread.
    const disks = await Promise.all([createDisk(api), createDisk(api), createDisk(api)]);
    await Promise.all(disks.map(({ id }) => exec(api, id, 'sleep 0.2')));
    for (const { id } of disks) {
      if ((await holdersOf(stack, id)).includes(agent.daemon.name)) return id;
    }
    return undefined;
  });
}

/** Starts a command that runs until `end` is called. */
async function startHeld(
  api: ApiClient,
  agent: StackNode,
  diskId: string,
): Promise<{ reply: Promise<ApiReply<ApiBody>>; end: () => Promise<void> }> {
  const mark = `BERTH_MARK=${randomBytes(8).toString('hex')}`;
  const reply = post(
    api,
    diskId,
    `export ${mark}; until [ -e go ]; do sleep 0.05; done; rm go; echo held`,
  );
  await waitFor('the command', async () => (await processesMarked(mark)).length > 0);
  return { reply, end: () => writeFile(join(diskMount(agent, diskId), 'contents/go'), '') };
}

test.serial('a disk is used through both control nodes, on one agent', async (t) => {
  const { stack, api, otherApi } = t.context;
  const { id } = await createDisk(api);
  await exec(api, id, 'echo one >> log');
  const holders = await holdersOf(stack, id);
  t.is(holders.length, 1);
  t.is((await exec(otherApi, id, 'echo two >> log; cat log')).stdout, 'one\ntwo\n');
  await Promise.all(
    [api, otherApi, api, otherApi].map((each) => exec(each, id, 'echo more >> log')),
  );
  t.is((await exec(api, id, 'wc -l < log')).stdout, '6\n');
  t.deepEqual(await holdersOf(stack, id), holders);
});

test.serial('one control node sees at once what the other creates or deletes', async (t) => {
  const { api, otherApi } = t.context;
  const { id } = await createDisk(api);
  t.is((await otherApi.call('GET', `/api/disks/${id}`)).status, 200);
  t.is((await otherApi.call('DELETE', `/api/disks/${id}`)).status, 200);
  t.is((await api.call('GET', `/api/disks/${id}`)).status, 404);
  t.is((await post(api, id, 'true')).status, 404);
});

test.serial(
  'simultaneous requests for a disk through both nodes attach it on one agent',
  async (t) => {
    const { stack, api, otherApi } = t.context;
    for (let round = 0; round < 5; round += 1) {
      const { id } = await createDisk(api);
      const replies = await Promise.all(
        [api, otherApi, api, otherApi].map((each, index) => post(each, id, `echo ${index} >> log`)),
      );
      t.deepEqual(
        replies.map(({ status }) => status),
        [200, 200, 200, 200],
      );
      t.is((await exec(api, id, 'sort log')).stdout, '0\n1\n2\n3\n');
      t.is((await holdersOf(stack, id)).length, 1);
    }
  },
);

test.serial('disks in use at the same time spread over the agents', async (t) => {
  const { stack, api } = t.context;
  const disks = await Promise.all(Array.from({ length: 12 }, () => createDisk(api)));
  // The load that the hosts reported last may still be that of the previous test.
  await sleep(3 * LIMITS.linkHeartbeatMs);
  await Promise.all(disks.map(({ id }) => exec(api, id, 'sleep 0.5')));
  const holders = (await Promise.all(disks.map(({ id }) => holdersOf(stack, id)))).flat();
  t.is(holders.length, disks.length);
  for (const name of ['agent', 'agent-2']) {
    t.true(holders.filter((holder) => holder === name).length >= 2, holders.join(' '));
  }
});

test.serial('idle disks on two agents move together for one command', async (t) => {
  const { stack, api, agent, otherAgent } = t.context;
  const a = await diskOn(t.context, agent);
  const b = await diskOn(t.context, otherAgent);
  await exec(api, a, 'echo from-a > file');
  await exec(api, b, 'echo from-b > file');
  const result = await api.data<{ stdout: string }>('POST', '/api/exec', {
    disks: { a, b },
    command: 'cat a/file b/file; cp a/file b/copy',
  });
  t.is(result.stdout, 'from-a\nfrom-b\n');
  const holders = await holdersOf(stack, a);
  t.is(holders.length, 1);
  t.deepEqual(await holdersOf(stack, b), holders);
  t.is((await exec(api, b, 'cat copy')).stdout, 'from-a\n');
});

test.serial('an idle disk moves to the agent of a disk in use', async (t) => {
  const { stack, api, otherApi, agent, otherAgent } = t.context;
  const a = await diskOn(t.context, agent);
  const b = await diskOn(t.context, otherAgent);
  const held = await startHeld(api, otherAgent, b);
  const request = { disks: { a, b }, command: 'touch a/ran b/ran' };
  for (const each of [api, otherApi]) {
    t.is((await each.call('POST', '/api/exec', request)).status, 200);
    t.deepEqual(await holdersOf(stack, a), await holdersOf(stack, b));
  }
  await held.end();
  t.like((await held.reply).body.data, { stdout: 'held\n' });
});

test.serial('a command on disks in use on two agents gets 409 and does not begin', async (t) => {
  const { stack, api, otherApi, agent, otherAgent } = t.context;
  const a = await diskOn(t.context, agent);
  const b = await diskOn(t.context, otherAgent);
  const held = [await startHeld(api, agent, a), await startHeld(api, otherAgent, b)];
  const request = { disks: { a, b }, command: 'touch a/ran b/ran' };
  for (const each of [api, otherApi]) {
    const refused = await each.call('POST', '/api/exec', request);
    t.deepEqual([refused.status, refused.body.code], [409, 'disk_in_use']);
    t.true([a, b].some((id) => refused.body.error.includes(id)));
  }
  for (const { end, reply } of held) {
    await end();
    t.like((await reply).body.data, { stdout: 'held\n' });
  }
  t.is((await exec(api, a, 'ls ran || true')).stdout, '');
  t.is((await api.call('POST', '/api/exec', request)).status, 200);
  t.deepEqual(await holdersOf(stack, a), await holdersOf(stack, b));
});

test.serial('two regions on one Redis share API keys but not disks', async (t) => {
  const { stack, api, farApi } = t.context;
  const name = newName();
  const near = await createDisk(api, { name });
  const far = await createDisk(farApi, { name });
  t.not(near.id, far.id);
  t.is(far.region, FAR_REGION);
  await exec(api, near.id, 'echo near > file');
  await exec(farApi, far.id, 'echo far > file');
  t.is((await exec(api, near.id, 'cat file')).stdout, 'near\n');
  t.is((await exec(farApi, far.id, 'cat file')).stdout, 'far\n');
  t.deepEqual(await holdersOf(stack, far.id), ['agent-3']);

  const listed = await farApi.data<{ id: string }[]>('GET', '/api/disks');
  t.deepEqual(
    listed.map(({ id }) => id),
    [far.id],
  );
  t.is((await farApi.call('GET', `/api/disks/${near.id}`)).status, 404);
  t.is((await farApi.call('DELETE', `/api/disks/${near.id}`)).status, 404);
  t.is((await post(farApi, near.id, 'true')).status, 404);
  const mixed = { disks: { near: near.id, far: far.id }, command: 'true' };
  t.is((await farApi.call('POST', '/api/exec', mixed)).status, 404);
});

test.serial('requests through one control node continue when the other is killed', async (t) => {
  const { stack, api, otherApi, agent, otherAgent } = t.context;
  const [a, b] = [await diskOn(t.context, agent), await diskOn(t.context, otherAgent)];
  const pids = [agent.daemon.pid, otherAgent.daemon.pid];
  const held = await startHeld(otherApi, agent, a);
  const mark = `BERTH_MARK=${randomBytes(8).toString('hex')}`;
  const call = keyedExec(b, `export ${mark}; sleep 3; echo done >> done`);
  const lost = call(api).catch(() => 'cut');
  await waitFor('the command', async () => (await processesMarked(mark)).length > 0);

  await stack.control.stop('SIGKILL');
  t.is(await lost, 'cut');
  const repeated = call(otherApi);
  t.is((await exec(otherApi, b, 'echo well')).stdout, 'well\n');
  t.is((await exec(otherApi, (await createDisk(otherApi)).id, 'echo new')).stdout, 'new\n');
  await held.end();
  t.like((await held.reply).body.data, { stdout: 'held\n' });
  const done = await exec(otherApi, b, 'until [ -e done ]; do sleep 0.05; done; cat done');
  t.is(done.stdout, 'done\n', 'what it had begun went on, once');
  const { status, body } = await repeated;
  t.deepEqual([status, body.code], [500, 'outcome_unknown']);
  t.is((await exec(otherApi, b, 'cat done')).stdout, 'done\n', 'the repetition ran nothing');
  t.deepEqual([agent.daemon.pid, otherAgent.daemon.pid], pids);

  await stack.startControl();
  for (const disk of [a, b]) {
    await waitFor('the agents', async () => (await post(api, disk, 'true')).status === 200);
  }
});

test.serial(
  'a request repeated at another node after SIGTERM of the first gets its answer',
  async (t) => {
    const { stack, api, otherApi, agent } = t.context;
    const disk = await diskOn(t.context, agent);
    const mark = `BERTH_MARK=${randomBytes(8).toString('hex')}`;
    const call = keyedExec(disk, `export ${mark}; sleep 6; echo once | tee -a done`);
    const first = call(api);
    await waitFor('the command', async () => (await processesMarked(mark)).length > 0);
    const stopped = stack.control.stop('SIGTERM');
    const repeated = await call(otherApi);
    t.like(repeated.body.data, { stdout: 'once\n' });
    t.is(repeated.headers.get('idempotency-replayed'), 'true');
    t.deepEqual((await first).body, repeated.body);
    t.is(await stopped, 0);
    t.is((await exec(otherApi, disk, 'cat done')).stdout, 'once\n');
    await stack.startControl();
    await waitFor('the agent', async () => (await post(api, disk, 'true')).status === 200);
  },
);

test.serial(
  'an agent finishes its commands on SIGTERM, and new ones go to the other agent',
  async (t) => {
    const { stack, api, otherApi, agent, otherAgent } = t.context;
    const busy = await diskOn(t.context, otherAgent);
    const idle = await diskOn(t.context, otherAgent);
    await exec(api, idle, 'echo kept > file');
    const held = await startHeld(api, otherAgent, busy);
    const stopped = otherAgent.daemon.stop();
    await waitFor('draining', async () =>
      (await otherAgent.daemon.readLog()).includes('process:stopping'),
    );
    const refused = await post(otherApi, busy, 'touch late');
    t.deepEqual([refused.status, refused.body.code], [503, 'unavailable']);
    t.true(Number(refused.headers.get('retry-after')) > 0);
    // The agent keeps running for the command under way, with that command's disk only.
    const moved = await waitFor('the idle disk', async () => {
      const reply = await post(api, idle, 'cat file');
      return reply.status === 200 && reply.body.data;
    });
    t.like(moved, { stdout: 'kept\n' });
    t.deepEqual(await holdersOf(stack, idle), [agent.daemon.name]);
    const { id } = await createDisk(api);
    t.is((await exec(api, id, 'echo new')).stdout, 'new\n');
    await held.end();
    t.like((await held.reply).body.data, { stdout: 'held\n', exitCode: 0 });
    t.is(await stopped, 0);

    // At once: no lease has to lapse first.
    t.is((await exec(api, busy, 'ls')).stdout, '');
    t.deepEqual(await holdersOf(stack, busy), [agent.daemon.name]);
  },
);
