/*
 * When the answer comes, the command's whole process tree is dead and the disk is out of it. What a
 * command leaves behind is looked for on the host, at once and without waiting.
 */
import { createDisk, exec } from '../helpers/disks.ts';
import { diskMount, hostTraces, newMark, processesMarked, usersOfDisk } from '../helpers/host.ts';
import { stackTest } from '../helpers/stack-test.ts';
import { waitFor } from '../helpers/wait.ts';

const test = stackTest();

const leavesNothing = test.macro<[command: string, exitCode?: number]>({
  async exec(t, command, exitCode = 0) {
    const { api, stack } = t.context;
    const { id } = await createDisk(api);
    const mark = newMark();
    const result = await exec(api, id, `export ${mark}\n${command}`);
    t.deepEqual(await processesMarked(mark), []);
    t.deepEqual(await usersOfDisk(diskMount(stack, id)), []);
    t.is(result.exitCode, exitCode, result.stderr);
    const next = await exec(api, id, 'flock --nonblock held echo free');
    t.is(next.stdout, 'free\n');
  },
  title: (given = '') => `nothing is left of ${given}`,
});

test('a background child', leavesNothing, 'sleep 1000 &');
test('a child in a session of its own', leavesNothing, 'setsid sleep 1000 & sleep 0.1');
test(
  'a double fork',
  leavesNothing,
  '(setsid bash -c "sleep 1000 & sleep 1000 & exit" &); exit 6',
  6,
);
test('hundred children', leavesNothing, 'for i in {1..100}; do sleep 1000 & done; exit 1', 1);
test(
  'a child that ignores signals',
  leavesNothing,
  'bash -c "trap : TERM; trap \'\' INT HUP; while :; do sleep 1; done" & sleep 0.1',
);
test('a child that was stopped', leavesNothing, 'sleep 1000 & kill -STOP $!');
test('a file held open', leavesNothing, 'sleep 1000 > held & tail -f held &');
test('a lock held', leavesNothing, 'flock held sleep 1000 & sleep 0.2');
test(
  'a working directory that was removed',
  leavesNothing,
  'mkdir d; cd d; sleep 1000 & rmdir ../d',
);
test(
  'a program on the disk that runs',
  leavesNothing,
  'cp /usr/bin/sleep own; ./own 1000 & sleep 0.1',
);
test('a FIFO with somebody waiting', leavesNothing, 'mkfifo fifo; cat fifo & sleep 0.1');
test('closed outputs', leavesNothing, 'exec >&- 2>&-; sleep 1000 & exit 5', 5);
test('outputs held by a child', leavesNothing, 'nohup yes > /dev/null & exec 1>&2; exit 2', 2);
test('a command that kills itself', leavesNothing, 'sleep 1000 & kill -9 $$', 137);
test('a command that kills everything', leavesNothing, 'sleep 1000 & kill -9 -1; exit 3', 3);

const python = (text: string): string => `python3 - <<'END'\n${text}\nEND`;
test(
  'a file mapped and unlinked',
  leavesNothing,
  python(`
import mmap, os, time
file = open('mapped', 'w+b'); file.truncate(1 << 20)
memory = mmap.mmap(file.fileno(), 1 << 20); memory[:4] = b'data'
os.unlink('mapped')
if os.fork() == 0:
    os.setsid(); time.sleep(1000)`),
);
test(
  'a subreaper',
  leavesNothing,
  python(`
import ctypes, os, time
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
if os.fork() == 0:
    if os.fork() == 0:
        time.sleep(1000)
    time.sleep(1000)`),
);
test(
  'a traced process',
  leavesNothing,
  python(`
import ctypes, os, signal, time
if os.fork() == 0:
    ctypes.CDLL(None).ptrace(0, 0, 0, 0)
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(1000)
os.wait3(os.WUNTRACED)
os.kill(os.getpid(), signal.SIGKILL)`),
  137,
);
// Two sockets, each in flight through the other, keep each other and the file alive until the
// kernel's collector comes by.
test(
  'a file in flight between sockets',
  leavesNothing,
  python(`
import array, os, socket
held = os.open('held', os.O_CREAT | os.O_RDWR)
one, two = socket.socketpair()
for end in (one, two):
    files = array.array('i', [held, one.fileno(), two.fileno()])
    end.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])`),
);

test('a command whose caller hangs up is ended', async (t) => {
  const { api, stack } = t.context;
  const { id } = await createDisk(api);
  const mark = newMark();
  const hangUp = new AbortController();
  const command = `export ${mark}; touch begun; (setsid sleep 1000 &); trap : TERM; sleep 1000; touch done`;
  const call = api.call('POST', `/api/disks/${id}/exec`, { command }, {}, hangUp.signal);
  await waitFor('the command', async () => (await processesMarked(mark)).length >= 3);
  hangUp.abort();
  await t.throwsAsync(call, { name: 'AbortError' });
  await waitFor('its end', async () => (await processesMarked(mark)).length === 0);
  const { stdout } = await exec(api, id, 'ls');
  t.is(stdout, 'begun\n');
  await waitFor('the disk', async () => (await usersOfDisk(diskMount(stack, id))).length === 0);
});

test('callers that hang up at any moment leave nothing', async (t) => {
  const { api, stack } = t.context;
  const { id } = await createDisk(api);
  await exec(api, id, 'true');
  const mark = newMark();
  const command = `export ${mark}; sleep 1000`;
  const calls = Array.from({ length: 24 }, async (_, index) => {
    const signal = AbortSignal.timeout(index * 10);
    return api.call('POST', `/api/disks/${id}/exec`, { command }, {}, signal);
  });
  const results = await Promise.allSettled(calls);
  t.true(results.every(({ status }) => status === 'rejected'));
  await waitFor('their end', async () => {
    const last = await exec(api, id, 'echo alone');
    return last.stdout === 'alone\n' && (await processesMarked(mark)).length === 0;
  });
  await waitFor('the disk', async () => (await usersOfDisk(diskMount(stack, id))).length === 0);
});

test('a disk is deleted under a running command', async (t) => {
  const { api, stack } = t.context;
  const { id } = await createDisk(api);
  const mark = newMark();
  const path = `/api/disks/${id}`;
  const call = api.call('POST', `${path}/exec`, { command: `export ${mark}; sleep 1000 > held` });
  await waitFor('the command', async () => (await processesMarked(mark)).length > 0);
  t.is((await api.call('DELETE', path)).status, 200);
  t.deepEqual(await processesMarked(mark), []);
  const reply = await call;
  t.is(reply.status, 404);
  t.is(reply.body.code, 'not_found');
  t.false((await hostTraces(stack)).some((trace) => trace.includes(id)));
});
