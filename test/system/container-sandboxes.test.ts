/* Sandboxes on a host whose runtime is containers, from the API to what is left on the host. */
import { readdir, readFile, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { paths } from '../../agent/system/paths.ts';
import type { ApiClient } from '../helpers/api.ts';
import { processesMarked } from '../helpers/host.ts';
import { loopFiles } from '../helpers/loops.ts';
import {
  type ApiSandbox,
  beginExec,
  bring,
  containerSettings,
  createSandbox,
  endedExec,
  execIn,
  forkSandbox,
  getSandbox,
  outputOf,
  removeSandbox,
} from '../helpers/sandboxes.ts';
import { TestConnection } from '../helpers/test-connection.ts';
import type { Stack } from '../helpers/stack.ts';
import { stackTest } from '../helpers/stack-test.ts';
import { waitFor } from '../helpers/wait.ts';
import { MiB } from '../../shared/units.ts';

const test = stackTest(containerSettings());

/** Counts in memory only: a file on a tmpfs, by a process that detached itself. */
const COUNTER =
  "setsid sh -c 'n=0; while sleep 0.02; do n=$((n+1)); echo $n >/run/new; mv /run/new /run/count; done' >/dev/null 2>&1 &";

async function startCounter(api: ApiClient, id: string): Promise<void> {
  await outputOf(api, id, COUNTER);
  await outputOf(api, id, 'until test -s /run/count; do sleep 0.05; done');
}

const readCount = async (api: ApiClient, id: string): Promise<number> =>
  Number(await outputOf(api, id, 'cat /run/count'));

/** The groups of a sandbox's container, in every hierarchy that has one. */
async function groupsOf(stack: Stack, id: string): Promise<string[]> {
  const host = await readFile(paths.hostId(stack.environment['AGENT_DATA_DIR'] ?? ''), 'utf8');
  const path = join(stack.environment['AGENT_CGROUP'] ?? '', host.trim(), 'sandboxes', id);
  const roots = ['', ...(await readdir('/sys/fs/cgroup'))];
  const found: string[] = [];
  for (const root of roots) {
    const group = join('/sys/fs/cgroup', root, path);
    if ((await stat(group).catch(() => undefined)) !== undefined) found.push(group);
  }
  return found;
}

/** All traces of a sandbox on the host: processes, loop devices, control groups, files. */
async function tracesOf(stack: Stack, id: string): Promise<string[]> {
  const directory = join(paths.sandboxes(stack.environment['AGENT_DATA_DIR'] ?? ''), id);
  const files = (await stat(directory).catch(() => undefined)) === undefined ? [] : [directory];
  const loops = [...loopFiles()].filter(([, file]) => file.includes(id));
  const mounts = (await readFile('/proc/self/mountinfo', 'utf8')).split('\n');
  return [
    ...(await processesMarked(id)),
    ...loops.map(([name]) => name),
    ...(await groupsOf(stack, id)),
    ...files,
    ...mounts.filter((line) => line.includes(id)),
  ];
}

test.serial(
  'a sandbox is a container of its own and leaves nothing when it is deleted',
  async (t) => {
    const { stack, api } = t.context;
    const { sandbox_id: id, name } = await createSandbox(api, { name: 'its-own-name' });
    t.is(await outputOf(api, id, 'hostname; id -u; cat /proc/1/comm'), `${name}\n0\nguest\n`);
    t.is(
      await outputOf(api, id, 'tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d " " | sort'),
      'eth0\nlo\n',
    );
    const refused = await execIn(api, id, 'mount -t tmpfs none /mnt || unshare -r true || echo no');
    t.is(refused.stdout, 'no\n');
    t.not(await tracesOf(stack, id).then(String), '');
    // The host sees no mount of it, whatever its container has.
    const mounts = (await readFile('/proc/self/mountinfo', 'utf8')).split('\n');
    t.deepEqual(
      mounts.filter((line) => line.includes(id)),
      [],
    );
    await removeSandbox(api, id);
    await waitFor('nothing to be left', async () => (await tracesOf(stack, id)).length === 0);
    t.pass();
  },
);

test.serial('processes go on after a pause, and their memory counts meanwhile', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  await startCounter(api, id);
  const used = (): Promise<number> => memoryUsed(t.context.stack);
  const before = await used();
  for (let round = 0; round < 2; round += 1) {
    const { checkpoint } = await bring(api, id, 'pause', 'paused');
    t.truthy(checkpoint);
    t.is(await used(), before);
    await bring(api, id, 'resume', 'running');
    const count = await readCount(api, id);
    await waitFor('it to count on', async () => (await readCount(api, id)) > count);
  }
  await bring(api, id, 'pause', 'paused');
  await bring(api, id, 'stop', 'stopped');
  t.true((await used()) < before);
  await bring(api, id, 'start', 'running');
  t.is((await execIn(api, id, 'cat /run/count')).exit_code, 1);
  await removeSandbox(api, id);
});

const settledAs = (api: ApiClient, id: string, status: string): Promise<ApiSandbox> =>
  waitFor(`the sandbox to be ${status}`, async () => {
    const sandbox = await getSandbox(api, id);
    return sandbox.status === status && sandbox;
  });

/** Memory of its sandboxes by the agent's metrics, in MiB. */
async function memoryUsed(stack: Stack): Promise<number> {
  const port = stack.environment['AGENT_ADMIN_PORT'];
  const text = await (await fetch(`http://127.0.0.1:${port}/metrics`)).text();
  const line = /^berth_sandbox_capacity_memory_bytes\{part="used",.*\} (\d+)$/mu.exec(text);
  return Number(line?.[1]) / MiB;
}

test.serial(
  'commands and processes outlive a killed agent, in a sandbox that runs or is paused',
  async (t) => {
    const { stack, api } = t.context;
    const [running, paused] = await Promise.all([createSandbox(api), createSandbox(api)]);
    for (const { sandbox_id: id } of [running, paused]) await startCounter(api, id);
    await bring(api, paused.sandbox_id, 'pause', 'paused');
    const command = 'for i in $(seq 60); do echo $i; sleep 0.05; done';
    const begun = await beginExec(api, running.sandbox_id, command);
    await stack.agent.stop('SIGKILL');
    await stack.startAgent();
    const exec = await waitFor('the command to end', async () =>
      endedExec(api, running.sandbox_id, begun.body.data.exec_id),
    );
    t.is(exec.exit_code, 0);
    t.is(exec.stdout, Array.from({ length: 60 }, (_, index) => `${index + 1}\n`).join(''));
    const count = await readCount(api, running.sandbox_id);
    await waitFor('it to count on', async () => (await readCount(api, running.sandbox_id)) > count);
    await bring(api, paused.sandbox_id, 'resume', 'running');
    t.true((await readCount(api, paused.sandbox_id)) > 0);
    for (const { sandbox_id: id } of [running, paused]) await removeSandbox(api, id);
  },
);

test.serial('a terminal of a session goes on over a killed agent and a pause', async (t) => {
  const { stack, api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  const command = 'stty -echo; n=0; while read line; do n=$((n+1)); echo "$n $line"; done';
  const start = { type: 'start', command, terminal: { cols: 90, rows: 30 } };
  let session = await TestConnection.open(api, id, start);
  await session.until(() => session.processId !== '');
  const { processId } = session;
  await sleep(200); // Until the echo is off.
  const incidents = [
    async () => session.drop(),
    async () => {
      await stack.agent.stop('SIGKILL');
      await stack.startAgent();
    },
    async () => {
      await bring(api, id, 'pause', 'paused');
      await bring(api, id, 'resume', 'running');
    },
  ];
  let expected = '';
  for (const [index, incident] of incidents.entries()) {
    session.write(`line\n`);
    expected += `${index + 1} line\r\n`;
    const { length } = expected;
    await session.until(() => session.cursor >= length);
    await incident();
    session = await waitFor('the host to take an attachment', async () => {
      const attach = { type: 'attach', process_id: processId, offset: 0 };
      const opened = await TestConnection.open(api, id, attach).catch(() => undefined);
      await opened?.until(() => opened.cursor >= length).catch(() => undefined);
      return opened?.closed === undefined ? opened : undefined;
    });
    t.is(session.text, expected);
  }
  session.drop();
  await removeSandbox(api, id);
});

test.serial('a disk outlives a stop, and a fork has a copy of it but no memory', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  await outputOf(api, id, 'head -c 3000000 /dev/urandom > /root/data; echo one > /root/name');
  const sum = await outputOf(api, id, 'sha256sum /root/data');
  await startCounter(api, id);
  const count = await readCount(api, id);
  const ofRunning = await forkSandbox(api, id);
  t.true((await readCount(api, id)) > count);
  await bring(api, id, 'pause', 'paused');
  const ofPaused = await forkSandbox(api, id);
  await bring(api, id, 'stop', 'stopped');
  const ofStopped = await forkSandbox(api, id);
  await bring(api, id, 'start', 'running');
  t.is(await outputOf(api, id, 'sha256sum /root/data'), sum);
  const forks = [ofRunning, ofPaused, ofStopped];
  for (const { sandbox_id: child } of forks) {
    t.is(await outputOf(api, child, 'sha256sum /root/data'), sum);
    t.is((await execIn(api, child, 'test -e /run/count')).exit_code, 1);
    await outputOf(api, child, 'echo other > /root/name');
  }
  t.is(await outputOf(api, id, 'cat /root/name'), 'one\n');
  for (const { sandbox_id: child } of forks) await removeSandbox(api, child);
  await removeSandbox(api, id);
});

test.serial(
  'a sandbox that forks, writes or allocates without end harms only itself',
  async (t) => {
    const { api } = t.context;
    const [hostile, neighbour] = await Promise.all([createSandbox(api), createSandbox(api)]);
    const id = hostile.sandbox_id;
    const bomb = 'b() { b | b & }; b; sleep 1; echo survived';
    await execIn(api, id, bomb, { timeout_ms: 5000 });
    t.is(await outputOf(api, neighbour.sandbox_id, 'echo here'), 'here\n');
    await bring(api, id, 'stop', 'stopped');
    await bring(api, id, 'start', 'running');
    const full = await execIn(api, id, 'head -c 1G /dev/zero > /root/full; rm /root/full; echo $?');
    t.regex(full.stderr ?? '', /No space left/u);
    t.is(full.stdout, '0\n');
    // A process that asked for too much is ended, and the sandbox goes on.
    const greedy = await execIn(api, id, 'head -c 600M /dev/zero | tail');
    t.not(greedy.exit_code, 0);
    t.is(await outputOf(api, id, 'echo here'), 'here\n');
    for (const sandbox of [hostile, neighbour]) await removeSandbox(api, sandbox.sandbox_id);
  },
);

test.serial(
  'a container whose guest agent runs out of memory says so, and can be started',
  async (t) => {
    const { stack, api } = t.context;
    const { sandbox_id: id } = await createSandbox(api);
    await outputOf(api, id, 'echo kept > /root/name; sync');
    const directory = join(paths.sandboxes(stack.environment['AGENT_DATA_DIR'] ?? ''), id);
    const identity = await readFile(join(directory, 'run/machine.json'), 'utf8');
    const { machine } = JSON.parse(identity) as { machine: { pid: number } };
    // Commands are ended before it; so that the kernel takes it all the same.
    await writeFile(`/proc/${machine.pid}/oom_score_adj`, '1000');
    const each = '{ head -c 40M /dev/zero; sleep 60; } | tail -c 40M';
    const many = `for i in $(seq 9); do (${each}) >/dev/null & done; wait`;
    await beginExec(api, id, many);
    const failed = await settledAs(api, id, 'failed');
    t.is(failed.exit_reason, 'out_of_memory');
    t.regex(failed.exit_message ?? '', /container was killed .* memory limit/u);
    await bring(api, id, 'start', 'running');
    t.is(await outputOf(api, id, 'cat /root/name'), 'kept\n');
    await removeSandbox(api, id);
  },
);
