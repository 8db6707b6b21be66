/* The lifecycle of sandboxes over HTTP: real virtual machines, one stack for all tests. */
import assert from 'node:assert';
import { randomUUID } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import anyTest, { type TestFn } from 'ava';
import type { ApiClient } from '../helpers/api.ts';
import {
  type ApiSandbox,
  type ApiSandboxExec,
  commandSandbox,
  createSandbox,
  endedExec,
  execIn,
  getSandbox,
  outputOf,
  removeSandbox,
  sandboxPath,
  sandboxSettings,
  settledSandbox,
} from '../helpers/sandboxes.ts';
import { putProgram } from '../helpers/network-checks.ts';
import { checkFiles, Files } from '../helpers/sandbox-files.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';
import { MiB } from '../../shared/units.ts';

interface Context {
  readonly stack: Stack;
  readonly api: ApiClient;
  /** A running sandbox, for tests that leave it running. */
  readonly shared: ApiSandbox;
}
const test = anyTest as TestFn<Context>;

test.before(async (t) => {
  const stack = await Stack.start(sandboxSettings());
  Object.assign(t.context, { stack });
  const api = await stack.newClient();
  const shared = await createSandbox(api, { name: 'shared', env: { COLOUR: 'blue' } });
  Object.assign(t.context, { stack, api, shared });
});

test.after.always((t) => t.context.stack.stop());

test('a sandbox has its own kernel, root disk, host name, memory and network', async (t) => {
  const { api, shared } = t.context;
  const id = shared.sandbox_id;
  const script = [
    'hostname',
    'id -u',
    'cat /proc/1/comm',
    'findmnt -no FSTYPE /',
    'grep MemTotal /proc/meminfo | tr -dc 0-9',
    'ls /sys/class/net | tr "\\n" " "',
    'echo $COLOUR',
    'date +%Y',
    'cat /etc/machine-id',
  ];
  const lines = (await outputOf(api, id, script.map((line) => `${line}; echo`).join('; ')))
    .split('\n')
    .filter((line) => line !== '');
  const [hostname, uid, , type, memoryKib, interfaces, colour, year, machineId] = lines;
  t.deepEqual([hostname, uid, type, colour], ['shared', '0', 'ext4', 'blue']);
  t.true(Number(memoryKib) > 150 * 1024 && Number(memoryKib) < 256 * 1024);
  t.regex(interfaces ?? '', /\beth0\b.*\blo\b/u);
  t.is(year, String(new Date().getUTCFullYear()));
  t.is(machineId, id.replaceAll('-', ''));
});

test('a guest’s kernel loads what containers and firewalls need when it is asked for', async (t) => {
  const { api, shared } = t.context;
  const program = await putProgram(api, shared.sandbox_id, 'use-modules.py');
  t.is(await outputOf(api, shared.sandbox_id, program), 'bridge overlay tun\n');
  const modprobe = '/run/berth/kernel/modprobe';
  const byName = `${modprobe} br-netfilter && ls /proc/sys/net/bridge | head -n 1`;
  t.is(await outputOf(api, shared.sandbox_id, byName), 'bridge-nf-call-arptables\n');
  t.is((await execIn(api, shared.sandbox_id, `${modprobe} no-such-module`)).exit_code, 1);
});

test('files go up and down, are listed, watched and removed', async (t) => {
  const { api, stack, shared } = t.context;
  await checkFiles(t, new Files(stack, api, shared.sandbox_id));
});

test('a command’s output and exit code arrive', async (t) => {
  const { api, shared } = t.context;
  const id = shared.sandbox_id;
  const exec = await execIn(api, id, 'echo out; echo err >&2; exit 3');
  t.like(exec, { status: 'completed', exit_code: 3, stdout: 'out\n', stderr: 'err\n' });
  const killed = await execIn(api, id, 'kill -9 $$');
  t.like(killed, { status: 'completed', exit_code: 137, exit_reason: 'signal 9' });
  const coloured = await execIn(api, id, 'echo $COLOUR $SHAPE', { env: { SHAPE: 'round' } });
  t.is(coloured.stdout, 'blue round\n');
  const terminal = await execIn(api, id, 'test -t 1 && echo terminal', { command_tty: true });
  t.is(terminal.stdout, 'terminal\r\n');
});

test('a command that takes too long is killed, one that is cancelled too', async (t) => {
  const { api, shared } = t.context;
  const path = `${sandboxPath(shared.sandbox_id)}/execs`;
  const late = await execIn(api, shared.sandbox_id, 'echo begun; sleep 1000', {
    timeout_seconds: 8, // Other sandboxes boot in the meantime.
  });
  t.like(late, { status: 'timed_out', stdout: 'begun\n' });
  const { exec_id: execId, status } = await api.data<ApiSandboxExec>('POST', path, {
    command: 'echo begun; sleep 1000',
  });
  t.is(status, 'running');
  await waitFor('its output', async () => {
    const { stdout } = await api.data<ApiSandboxExec>('GET', `${path}/${execId}`);
    return stdout === 'begun\n';
  });
  for (const _ of [1, 2]) {
    const cancelled = await api.data<ApiSandboxExec>('POST', `${path}/${execId}/cancel`);
    t.is(cancelled.status, 'cancelled');
  }
  t.like(await endedExec(api, shared.sandbox_id, execId), { stdout: 'begun\n' });
});

test('the newest part of a large output is kept, and output_truncated is set', async (t) => {
  const { api, shared } = t.context;
  const exec = await execIn(api, shared.sandbox_id, 'seq 1 2500000');
  t.is(exec.status, 'completed');
  const stdout = exec.stdout ?? '';
  t.true(stdout.endsWith('2499999\n2500000\n'));
  t.true(stdout.length >= 4 * MiB && stdout.length < 9 * MiB);
  t.like(exec, { output_truncated: true });
});

test('commands are listed in the order of their execution, without output', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  for (const word of ['one', 'two', 'three']) await execIn(api, id, `echo ${word}`);
  const long = `: ${'x'.repeat(100_000)}`;
  await execIn(api, id, long);
  const { execs } = await api.data<{ execs: ApiSandboxExec[] }>('GET', `${sandboxPath(id)}/execs`);
  t.deepEqual(
    execs.map(({ command }) => command.slice(0, 10)),
    ['echo one', 'echo two', 'echo three', long.slice(0, 10)],
  );
  t.true(execs.every((exec) => exec.stdout === undefined && exec.stderr === undefined));
  const [last] = execs.slice(-1);
  assert(last !== undefined);
  t.like(last, { command_truncated: true });
  const path = `${sandboxPath(id)}/execs/${last.exec_id}`;
  t.is((await api.data<ApiSandboxExec>('GET', path)).command, long);
  await removeSandbox(api, id);
});

test('a command beyond max_concurrent_execs is refused with 429', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api, { max_concurrent_execs: 2 });
  const path = `${sandboxPath(id)}/execs`;
  for (const _ of [1, 2]) await api.data('POST', path, { command: 'sleep 1000' });
  const refused = await api.call('POST', path, { command: 'true' });
  t.deepEqual([refused.status, refused.body.code], [429, 'rate_limited']);
  t.truthy(refused.headers.get('retry-after'));
  await removeSandbox(api, id);
});

test('a sandbox names its real image and its network access', async (t) => {
  const { stack, api, shared } = t.context;
  const rootDisk = stack.environment['DEFAULT_ROOT_DISK'] ?? '';
  const text = await readFile(join(dirname(rootDisk), 'image.json'), 'utf8');
  const { name, version, key } = JSON.parse(text) as Record<'name' | 'version' | 'key', string>;
  t.like(await getSandbox(api, shared.sandbox_id), {
    base_image: `${name}:${version}`, // Its creator named none.
    image: { name, version, key },
    network: { egress: { default: 'allow' } },
  });
  const osRelease = await outputOf(
    api,
    shared.sandbox_id,
    '. /etc/os-release; echo $ID:$VERSION_ID',
  );
  t.is(osRelease, `${shared.base_image}\n`);
});

test('a stop and start keep the disk but not the memory', async (t) => {
  const { api } = t.context;
  const base_image = 'docker.io/library/ubuntu:26.04';
  const created = await createSandbox(api, { base_image });
  const { sandbox_id: id } = created;
  t.is(created.base_image, base_image, 'as its creator named it');
  const sessionMs = Date.parse(created.expires_at ?? '') - Date.parse(created.running_at ?? '');
  t.is(Math.round(sessionMs / 1000), created.max_ttl_seconds);
  const boot = await outputOf(api, id, 'cat /proc/sys/kernel/random/boot_id');
  await outputOf(
    api,
    id,
    'seq 100000 > /root/kept && sha256sum /root/kept > /root/sum; touch /run/gone',
  );
  const running = await api.data<ApiSandboxExec>('POST', `${sandboxPath(id)}/execs`, {
    command: 'echo working; sleep 1000',
  });
  await waitFor('its output', async () => {
    const path = `${sandboxPath(id)}/execs/${running.exec_id}`;
    return (await api.data<ApiSandboxExec>('GET', path)).stdout === 'working\n';
  });
  const stop = await commandSandbox(api, id, 'stop');
  t.is(stop.status, 200);
  t.true(['stopping', 'stopped'].includes(stop.body.data.status));
  const stopped = await settledSandbox(api, id);
  t.like(stopped, { status: 'stopped', exit_reason: 'stopped' });
  t.truthy(stopped.finished_at);
  t.is(stopped.expires_at, undefined);
  const ended = await endedExec(api, id, running.exec_id).catch(() => undefined);
  t.like(ended, { status: 'cancelled', stdout: 'working\n' });
  t.is((await commandSandbox(api, id, 'start')).body.data.status, 'pending');
  t.is((await settledSandbox(api, id)).status, 'running');
  await outputOf(api, id, 'sha256sum -c /root/sum && test ! -e /run/gone');
  t.not(await outputOf(api, id, 'cat /proc/sys/kernel/random/boot_id'), boot);
  await removeSandbox(api, id);
  t.is((await api.call('GET', sandboxPath(id))).status, 404);
  t.is((await api.call('DELETE', sandboxPath(id))).status, 404);
});

test('a sandbox whose guest ends by itself is exited and can be started again', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  await api.call('POST', `${sandboxPath(id)}/execs`, {
    command: 'echo kept > /root/f; poweroff || kill -TERM 1',
  });
  await waitFor('the end', async () => (await getSandbox(api, id)).status === 'exited', 60_000);
  t.like(await getSandbox(api, id), { exit_reason: 'guest_shutdown' });
  await commandSandbox(api, id, 'start');
  t.is((await settledSandbox(api, id)).status, 'running');
  t.is(await outputOf(api, id, 'cat /root/f'), 'kept\n');
  await removeSandbox(api, id);
});

test('a sandbox whose kernel panics is failed with guest_panic', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  await api.call('POST', `${sandboxPath(id)}/execs`, { command: 'echo c > /proc/sysrq-trigger' });
  await waitFor('the end', async () => (await getSandbox(api, id)).status === 'failed', 60_000);
  t.like(await getSandbox(api, id), { exit_reason: 'guest_panic' });
  await removeSandbox(api, id);
});

test('names are unique per account and free again after a deletion', async (t) => {
  const { api, stack, shared } = t.context;
  const taken = await api.call('POST', '/api/sandboxes', { name: shared.name });
  t.deepEqual([taken.status, taken.body.code], [409, 'sandbox_name_conflict']);
  const other = await stack.newClient();
  const theirs = await createSandbox(other, { name: shared.name });
  t.is((await api.call('GET', sandboxPath(theirs.sandbox_id))).status, 404);
  t.is((await commandSandbox(api, theirs.sandbox_id, 'stop')).status, 404);
  await removeSandbox(other, theirs.sandbox_id);
  const again = await createSandbox(other, { name: shared.name });
  await removeSandbox(other, again.sandbox_id);
});

test('starting a running sandbox and stopping a stopped one change nothing', async (t) => {
  const { api, shared } = t.context;
  const before = await getSandbox(api, shared.sandbox_id);
  const reply = await commandSandbox(api, shared.sandbox_id, 'start');
  t.deepEqual([reply.status, reply.body.data.running_at], [200, before.running_at]);
  const unknown = await commandSandbox(api, randomUUID(), 'start');
  t.deepEqual([unknown.status, unknown.body.code], [404, 'not_found']);
  const busy = await api.call('DELETE', sandboxPath(shared.sandbox_id));
  t.deepEqual([busy.status, busy.body.code], [409, 'sandbox_not_stopped']);
});

test('a sandbox that is still starting can be stopped', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await api.data<ApiSandbox>('POST', '/api/sandboxes', {
    mem_size_mib: 256,
  });
  const refused = await api.call('POST', `${sandboxPath(id)}/execs`, { command: 'true' });
  t.deepEqual([refused.status, refused.body.code], [409, 'sandbox_not_running']);
  t.is((await commandSandbox(api, id, 'start')).status, 200);
  await commandSandbox(api, id, 'stop');
  t.is((await settledSandbox(api, id)).status, 'stopped');
  await removeSandbox(api, id);
});

test('a guest reaches neither the host nor other guests', async (t) => {
  const { api, shared, stack } = t.context;
  const redis = new URL(stack.environment['REDIS_URL'] ?? '').port;
  const tries = ['10.0.0.1', '127.0.0.1', '169.254.169.254'].map(
    (address) => `timeout 2 bash -c '</dev/tcp/${address}/${redis}' 2>/dev/null && echo reached`,
  );
  const gateway = `timeout 2 bash -c "</dev/tcp/$(ip route 2>/dev/null | awk '/default/{print $3}')/${redis}"`;
  const exec = await execIn(api, shared.sandbox_id, [...tries, gateway, 'true'].join('; '));
  t.is(exec.stdout, '');
});

test('an action counts as a use of the sandbox even when it changes nothing', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id, last_active_at: before } = await createSandbox(api);
  t.is((await commandSandbox(api, id, 'start')).status, 200);
  const { last_active_at: after, status } = await getSandbox(api, id);
  t.is(status, 'running');
  t.true(Date.parse(after) > Date.parse(before), `${before} ${after}`);
  await removeSandbox(api, id);
});
