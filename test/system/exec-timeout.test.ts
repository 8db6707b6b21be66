import { randomBytes } from 'node:crypto';
import type { Disk } from '../../shared/schemas/disk.ts';
import type { ApiClient } from '../helpers/api.ts';
import { createDisk } from '../helpers/disks.ts';
import { diskMount, processesMarked, usersOfDisk } from '../helpers/host.ts';
import { stackTest } from '../helpers/stack-test.ts';
import { waitFor } from '../helpers/wait.ts';

const EXEC_SLOTS = 4;

const test = stackTest({
  EXEC_TIMEOUT_MS: '1500',
  EXEC_SLOTS: String(EXEC_SLOTS),
  EXEC_SLOTS_PER_ACCOUNT: String(EXEC_SLOTS),
  EXEC_PROCESSES: '64',
});

const run = (api: ApiClient, diskId: string, command: string) =>
  api.call('POST', `/api/disks/${diskId}/exec`, { command });

const timesOut = test.macro<[command: string]>({
  async exec(t, command) {
    const { api, stack } = t.context;
    const { id } = await createDisk(api);
    const mark = `BERTH_MARK=${randomBytes(8).toString('hex')}`;
    const reply = await run(api, id, `export ${mark}\n${command}`);
    t.deepEqual(await processesMarked(mark), []);
    t.deepEqual(await usersOfDisk(diskMount(stack, id)), []);
    t.is(reply.status, 504);
    t.is(reply.body.code, 'timeout');
    t.false(reply.body.success);
  },
  title: (given = '') => `504 and the whole tree dead: ${given}`,
});

test.serial('a command that timed out is a use of the disk', async (t) => {
  const { api } = t.context;
  const { id } = await createDisk(api);
  const reply = await run(api, id, 'head -c 3000000 /dev/urandom > file; sync; sleep 1000');
  t.is(reply.status, 504);
  const used = await waitFor('the figures', async () => {
    const disk = await api.data<Disk>('GET', `/api/disks/${id}`);
    return disk.metrics === undefined ? undefined : disk;
  });
  t.is(used.metrics?.requests, '1');
  t.true((used.dataSize ?? 0) >= 3_000_000);
  t.true((used.lastAccessed ?? '') > used.createdAt);
});

// Serial, because a command's time also runs while it waits for its turn.
test.serial('sleeping', timesOut, 'sleep 1000');
test.serial('ignoring SIGTERM', timesOut, 'trap "" TERM INT HUP; while :; do sleep 1; done');
test.serial(
  'a double fork in a session of its own',
  timesOut,
  '(setsid bash -c "sleep 1000 &" &); sleep 1000',
);
test.serial('waiting for a FIFO', timesOut, 'mkfifo fifo; cat fifo');
test.serial('stopped', timesOut, 'kill -STOP $$');
test.serial('a busy loop writing to the disk', timesOut, 'while :; do echo x > file; done');
test.serial('endless output', timesOut, 'yes');
test.serial(
  'a fork bomb',
  timesOut,
  'bomb() { bomb | bomb & sleep 1; }; while :; do bomb; done 2>/dev/null',
);

test.serial('a caller who hangs up while waiting for a slot', async (t) => {
  const { api } = t.context;
  const { id } = await createDisk(api);
  const ahead = Array.from({ length: EXEC_SLOTS }, () => run(api, id, 'sleep 0.7'));
  const hangUp = new AbortController();
  const path = `/api/disks/${id}/exec`;
  const call = api.call('POST', path, { command: 'touch ran' }, {}, hangUp.signal);
  const client = await t.context.stack.redisClient();
  await waitFor('the job', async () => {
    const [taken] = await client.keys('*:bull:exec-*:active');
    return taken !== undefined && (await client.llen(taken)) > EXEC_SLOTS;
  });
  hangUp.abort();
  await t.throwsAsync(call, { name: 'AbortError' });
  await Promise.all(ahead);
  const { body } = await run(api, id, 'ls');
  t.like(body.data, { stdout: '', exitCode: 0 });
});
