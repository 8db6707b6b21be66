/*
 * Guests against their host, through a real agent: they flood, stall, garble, and use up whatever
 * they have. What is to hold each time: every call is answered in time and clearly, another sandbox
 * of the host is served meanwhile, the agent's memory stays bounded, and the sandbox can be
 * stopped. BERTH_TEST_FULL=1 adds what takes long.
 */
import assert from 'node:assert';
import { readdir, stat } from 'node:fs/promises';
import { connect } from 'node:net';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import anyTest, { type TestFn } from 'ava';
import { paths } from '../../agent/system/paths.ts';
import { machinePaths } from '../../agent/machines/qemu/process/machine-directory.ts';
import { runPaths } from '../../agent/machines/shim/shim-files.ts';
import type { ApiClient } from '../helpers/api.ts';
import { peakMemoryBytes } from '../helpers/host.ts';
import {
  type ApiSandbox,
  type ApiSandboxExec,
  beginExec,
  commandSandbox,
  createSandbox,
  endedExec,
  execIn,
  getSandbox,
  machinesOf,
  outputOf,
  removeSandbox,
  sandboxPath,
  sandboxSettings,
  settledSandbox,
} from '../helpers/sandboxes.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';
import { isFull } from '../helpers/full.ts';
import { KiB, MiB } from '../../shared/units.ts';

/** Limit on the agent's memory, whatever its guests do. By itself it takes about 130 MiB. */
const AGENT_BYTES_MAX = 512 * MiB;
const ENDED_MS_MAX = 120_000;

const LARGE = 'x'.repeat(128 * KiB - 'LARGE'.length - 2); // Name, value, and two bytes of overhead.
const EXECS_MAX = 110;

interface Context {
  readonly stack: Stack;
  readonly api: ApiClient;
  /** For what does not break it. */
  readonly hostile: ApiSandbox;
  /** A sandbox of another caller on the same host. */
  readonly bystander: ApiSandbox;
}
const test = anyTest as TestFn<Context>;
const fullTest = isFull ? test : test.skip;
/** Capacity of a pipe (pipe(7)). */
const PIPE_BYTES = 64 * KiB;

test.before(async (t) => {
  const stack = await Stack.start(sandboxSettings());
  Object.assign(t.context, { stack });
  const api = await stack.newClient();
  const input = { env: { LARGE } };
  const [hostile, bystander] = await Promise.all([createSandbox(api, input), createSandbox(api)]);
  Object.assign(t.context, { api, hostile, bystander });
});

test.after.always(async (t) => {
  const { stack } = t.context;
  const peakBytes = await peakMemoryBytes(stack.agent.pid);
  await stack.stop();
  t.log(`the agent took ${Math.round(peakBytes / MiB)} MiB at most`);
  t.true(peakBytes < AGENT_BYTES_MAX);
});

const runDir = ({ stack }: Context, id: string): string =>
  machinePaths(join(paths.sandboxes(stack.environment['AGENT_DATA_DIR'] ?? ''), id)).run;

/** Asserts that another caller's sandbox works as before. */
async function assertOthersAreServed({ api, bystander }: Context): Promise<void> {
  assert.equal(await outputOf(api, bystander.sandbox_id, 'echo served'), 'served\n');
}

const machineOf = async (id: string): Promise<number> => {
  const [pid] = await machinesOf([id]);
  assert(pid !== undefined, 'its machine runs');
  return pid;
};

test.serial('commands that flood their output do not delay others', async (t) => {
  const { api, hostile } = t.context;
  const { sandbox_id: id } = hostile;
  const floods = await Promise.all(
    [1, 2, 3].map(() => beginExec(api, id, 'timeout -s KILL 4 yes; echo last')),
  );
  for (let round = 0; round < 5; round += 1) await assertOthersAreServed(t.context);
  t.is(await outputOf(api, id, 'echo beside it'), 'beside it\n');
  for (const { body } of floods) {
    const exec = await endedExec(api, id, body.data.exec_id);
    t.is(exec.status, 'completed');
    t.true((exec.stdout?.length ?? 0) < 9 * MiB);
    const { stdout = '', ...rest } = exec;
    // A killed writer ends the piece that it is at, which may come after what the shell writes
    // next.
    const end = stdout.slice(-PIPE_BYTES);
    t.true(end.includes('last\n'), JSON.stringify({ ...rest, end: end.slice(-80) }));
  }
});

test('a stalled guest is reported in time, goes on when it can, and is stopped by force', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  const machine = await machineOf(id);
  process.kill(machine, 'SIGSTOP');
  const into = await beginExec(api, id, 'echo late', { wait: true });
  t.is(into.status, 202, JSON.stringify(into.body));
  t.is(into.body.data.status, 'running'); // Whether the command runs is not known yet.
  const refused = await beginExec(api, id, 'echo never');
  t.deepEqual([refused.status, refused.body.code], [503, 'unavailable']);
  t.regex(refused.body.error, /does not answer/u);
  const { execs } = await api.data<{ execs: ApiSandboxExec[] }>('GET', `${sandboxPath(id)}/execs`);
  t.deepEqual(
    execs.map(({ exec_id: execId, status }) => [execId, status]),
    [[into.body.data.exec_id, 'running']],
  );
  t.is((await getSandbox(api, id)).status, 'running');
  await assertOthersAreServed(t.context);

  process.kill(machine, 'SIGCONT');
  await waitFor('the guest', async () => (await beginExec(api, id, 'true')).status === 202, 60_000);
  const exec = await endedExec(api, id, into.body.data.exec_id);
  // The end was reported before the guest stalled, or after, or never: then it was told again.
  t.is(exec.stdout, 'late\n', JSON.stringify(exec));

  process.kill(machine, 'SIGSTOP');
  t.is((await commandSandbox(api, id, 'stop')).status, 200);
  t.like(await settledSandbox(api, id), { status: 'stopped', exit_reason: 'stop_forced' });
  t.deepEqual(await machinesOf([id]), []);
  await removeSandbox(api, id);
});

/** Writes through the guest agent's own descriptor of the port, which cannot be opened twice. */
const GARBLE = `
import ctypes, os, random, sys, time
libc = ctypes.CDLL(None, use_errno=True)
pidfd = os.pidfd_open(1)
ports = [int(fd) for fd in os.listdir('/proc/1/fd')
         if 'vport' in os.readlink('/proc/1/fd/' + fd) or 'virtio-ports' in os.readlink('/proc/1/fd/' + fd)]
port = libc.syscall(438, pidfd, ports[0], 0)
assert port >= 0, os.strerror(ctypes.get_errno())
end = time.time() + 2
written = 0
while time.time() < end:
    try:
        written += os.write(port, random.randbytes(random.randrange(1, 70000)))
    except BlockingIOError:
        time.sleep(0.001)
print(written)
`;

test.serial(
  'a guest whose root garbles the channel harms only itself, and answers again afterwards',
  async (t) => {
    const { api, hostile } = t.context;
    const { sandbox_id: id } = hostile;
    const encoded = Buffer.from(GARBLE).toString('base64');
    await outputOf(api, id, `echo ${encoded} | base64 -d > /root/garble.py`);
    const garbling = await beginExec(api, id, 'python3 /root/garble.py');
    for (let round = 0; round < 5; round += 1) {
      const reply = await beginExec(api, id, 'echo meanwhile');
      t.true([202, 503].includes(reply.status), JSON.stringify(reply.body));
      await assertOthersAreServed(t.context);
    }
    const ended = await endedExec(api, id, garbling.body.data.exec_id);
    t.like(ended, { status: 'completed', exit_code: 0 });
    t.true(Number(ended.stdout) > 10 * KiB, ended.stdout);
    t.is(await outputOf(api, id, 'echo alive'), 'alive\n');
    t.like(await getSandbox(api, id), { status: 'running' });
  },
);

fullTest('a guest that closes its channel for good is stopped by force', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  const unbind =
    'cd /sys/bus/virtio/drivers/virtio_console && for d in virtio*; do echo $d > unbind; done';
  await beginExec(api, id, unbind);
  await waitFor(
    'it not to answer',
    async () => (await beginExec(api, id, 'true')).status === 503,
    ENDED_MS_MAX,
  );
  t.is((await getSandbox(api, id)).status, 'running');
  await commandSandbox(api, id, 'stop');
  t.like(await settledSandbox(api, id), { status: 'stopped', exit_reason: 'stop_forced' });
  await removeSandbox(api, id);
});

test.serial('commands and environments at their limits', async (t) => {
  const { api, hostile } = t.context;
  const { sandbox_id: id } = hostile;
  const value = 'y'.repeat(KiB);
  const many = Object.fromEntries(
    Array.from({ length: 120 }, (_, index) => [`NAME_${100 + index}`, value]),
  );
  const counted = await execIn(api, id, 'echo ${#LARGE} ${#NAME_100} ${#NAME_219}', { env: many });
  t.is(counted.stdout, `${LARGE.length} 1024 1024\n`, JSON.stringify(counted));
  const tooLarge = await beginExec(api, id, 'true', { env: { LARGE, MORE: '' } });
  t.is(tooLarge.status, 400);

  const command = `: '${'x'.repeat(MiB - 13)}'; echo ok`;
  assert(Buffer.byteLength(command) <= MiB && Buffer.byteLength(command) > MiB - 8);
  // More commands than the host keeps.
  for (let round = 0; round < 4; round += 1) {
    t.like(await execIn(api, id, command), { exit_code: 0, stdout: 'ok\n' });
  }
  t.is((await beginExec(api, id, `${command}${' '.repeat(20)}`)).status, 400);
});

test('a guest without memory, processes or room on its disk, and with a wrong clock, still ends in order', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  // Two that take all of it together, at once: one that grows thrashes for long before it is
  // killed.
  const take = 'dd if=/dev/zero of=/dev/null bs=180M count=1';
  const hog = await execIn(api, id, `${take} & ${take}; wait`);
  t.like(hog, { status: 'completed' });
  t.is(await outputOf(api, id, 'echo alive'), 'alive\n');

  const left = 'df --output=avail -B1 / | tail -1';
  const full = await execIn(api, id, `fallocate -l $(${left}) /fill; echo x > /more; ${left}`);
  t.is(full.stdout?.trim(), '0', JSON.stringify(full));
  t.is(await outputOf(api, id, 'echo still alive'), 'still alive\n');
  await outputOf(api, id, 'rm -f /fill');

  await outputOf(api, id, 'date -s 2001-01-01');
  const beforeAll = await execIn(api, id, 'date +%Y; sleep 1000', { timeout_seconds: 3 });
  t.like(beforeAll, { status: 'timed_out', stdout: '2001\n' });

  if (isFull) {
    // No limits but those of the guest's kernel: it fills its process table or memory.
    await beginExec(api, id, 'bomb() { bomb | bomb & }; bomb; sleep 1000');
    await sleep(3_000);
    await assertOthersAreServed(t.context);
    t.is((await getSandbox(api, id)).status, 'running');
  }
  t.is((await commandSandbox(api, id, 'stop')).status, 200);
  t.is((await settledSandbox(api, id)).status, 'stopped');

  await commandSandbox(api, id, 'start');
  t.is((await settledSandbox(api, id)).status, 'running');
  t.is(await outputOf(api, id, 'date +%Y'), `${new Date().getUTCFullYear()}\n`);
  await removeSandbox(api, id);
});

fullTest('a guest that restarts itself again and again has ended each time', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  for (const how of ['echo b > /proc/sysrq-trigger', 'kill -INT 1']) {
    await beginExec(api, id, how);
    await waitFor(
      'the end',
      async () => (await getSandbox(api, id)).status === 'exited',
      ENDED_MS_MAX,
    );
    t.like(await getSandbox(api, id), { exit_reason: 'guest_shutdown' });
    t.is((await commandSandbox(api, id, 'start')).status, 200);
    t.is((await settledSandbox(api, id)).status, 'running');
  }
  await removeSandbox(api, id);
});

test('a guest powers off while commands begin: each command ends', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  const off = beginExec(api, id, 'echo o > /proc/sysrq-trigger');
  const replies = await Promise.all(
    Array.from({ length: 20 }, () => beginExec(api, id, 'echo begun; sleep 1000')),
  );
  await off;
  for (const { status, body } of replies) {
    t.true([202, 409, 503].includes(status), JSON.stringify(body));
  }
  await waitFor(
    'the end',
    async () => (await getSandbox(api, id)).status === 'exited',
    ENDED_MS_MAX,
  );
  const { execs } = await api.data<{ execs: ApiSandboxExec[] }>('GET', `${sandboxPath(id)}/execs`);
  // The one that asks for it may end in time; the others cannot.
  const others = execs.filter(({ command }) => command.includes('sleep'));
  t.true(
    others.every(({ status }) => status === 'failed'),
    JSON.stringify(execs),
  );
  await removeSandbox(api, id);
});

test.serial('a flood of the console does not fill the disk', async (t) => {
  const { api, hostile } = t.context;
  const { sandbox_id: id } = hostile;
  await execIn(api, id, 'timeout 3 sh -c "yes flood > /dev/ttyS0"');
  const directory = runDir(t.context, id);
  const logs = (await readdir(directory)).filter((name) => name.startsWith('console.log'));
  t.true(logs.length > 0 && logs.length <= 2);
  for (const name of logs) t.true((await stat(join(directory, name))).size <= 512 * KiB);
  t.is(await outputOf(api, id, 'echo alive'), 'alive\n');
});

test.serial('a sandbox runs as many commands as it may, and no more', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api, { max_concurrent_execs: EXECS_MAX });
  const path = `${sandboxPath(id)}/execs`;
  const replies = await Promise.all(
    Array.from({ length: EXECS_MAX + 10 }, () => beginExec(api, id, 'sleep 1000')),
  );
  const begun = replies.filter(({ status }) => status === 202).map(({ body }) => body.data);
  t.is(begun.length, EXECS_MAX);
  t.is(replies.find(({ status }) => status !== 202)?.body.code, 'rate_limited');
  const listed = async (): Promise<ApiSandboxExec[]> =>
    (await api.data<{ execs: ApiSandboxExec[] }>('GET', path)).execs;
  t.is((await listed()).length, 100);
  const [first] = begun;
  assert(first !== undefined);
  await api.data('POST', `${path}/${first.exec_id}/cancel`);
  t.is((await endedExec(api, id, first.exec_id)).status, 'cancelled');
  t.is((await beginExec(api, id, 'sleep 1000')).status, 202);
  t.is((await beginExec(api, id, 'sleep 1000')).status, 429);
  t.is((await commandSandbox(api, id, 'stop')).status, 200);
  t.is((await settledSandbox(api, id)).status, 'stopped');
  t.deepEqual([...new Set((await listed()).map(({ status }) => status))], ['cancelled']);
  await commandSandbox(api, id, 'start');
  t.is((await settledSandbox(api, id)).status, 'running');
  await removeSandbox(api, id);
});

(isFull ? test.serial : test.serial.skip)(
  'a machine whose monitor somebody else holds runs on, and is stopped',
  async (t) => {
    const { api, stack } = t.context;
    const { sandbox_id: id } = await createSandbox(api);
    await stack.agent.stop('SIGKILL');
    const intruder = connect(runPaths(runDir(t.context, id)).monitor);
    try {
      await waitFor('the monitor', async () => intruder.bytesRead > 0);
      await stack.startAgent();
      await waitFor('the host', async () => (await beginExec(api, id, 'true')).status === 202);
      t.is(await outputOf(api, id, 'echo alive'), 'alive\n');
      t.is((await commandSandbox(api, id, 'stop')).status, 200);
      t.is((await settledSandbox(api, id)).status, 'stopped');
    } finally {
      intruder.destroy();
    }
    await removeSandbox(api, id);
  },
);
