/* A disk belongs to one host at a time: its lease in the directory says which. */
import { randomBytes } from 'node:crypto';
import { existsSync } from 'node:fs';
import * as fc from '../helpers/fast-check.ts';
import anyTest, { type TestFn } from 'ava';
import type { Directory } from '../../shared/directory/directory.ts';
import type { AcquiredLease, DiskLease } from '../../shared/directory/disk-leases.ts';
import { otherAgent } from '../helpers/agents.ts';
import type { ApiBody, ApiClient, ApiReply } from '../helpers/api.ts';
import { createDisk, diskFolder, exec } from '../helpers/disks.ts';
import { hostTraces, processesMarked } from '../helpers/host.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';
import { isFull } from '../helpers/full.ts';

interface Context {
  stack: Stack;
  api: ApiClient;
  directory: Directory;
}

const test = anyTest as TestFn<Context>;

const TTL_MS = 60_000;
const HOST_A = 'host-aaaaaaaaaaaa';
const HOST_B = 'host-bbbbbbbbbbbb';

test.before(async (t) => {
  t.context.stack = await Stack.start();
  t.context.api = await t.context.stack.newClient();
  t.context.directory = await t.context.stack.openDirectory();
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

const newRef = () => ({
  accountId: `acct-${randomBytes(8).toString('hex')}`,
  diskId: `dsk-${randomBytes(8).toString('hex')}`,
});

async function take(
  { diskLeases }: Directory,
  ref: { accountId: string; diskId: string },
  hostId: string,
  ttlMs = TTL_MS,
): Promise<AcquiredLease> {
  const lease = await diskLeases.acquire(ref, hostId, ttlMs);
  if ('heldBy' in lease) throw new Error(`held by ${lease.heldBy}`);
  return lease;
}

/** The key of the disk in the directory. */
async function refOf(stack: Stack, diskId: string): Promise<{ accountId: string; diskId: string }> {
  const redis = await stack.redisClient();
  const [key = ''] = await redis.keys(`*:disk:${diskId}`);
  return { accountId: /\{(.*?)\}/u.exec(key)?.[1] ?? '', diskId };
}

const post = (api: ApiClient, diskId: string, command: string): Promise<ApiReply<ApiBody>> =>
  api.call('POST', `/api/disks/${diskId}/exec`, { command });

test('one host gets the lease; another is told which host has it', async (t) => {
  const { directory } = t.context;
  const ref = newRef();
  const lease = await take(directory, ref, HOST_A);
  t.deepEqual(lease, { ...ref, hostId: HOST_A, epoch: 1, formerHosts: [] });
  t.deepEqual(await directory.diskLeases.acquire(ref, HOST_B, TTL_MS), { heldBy: HOST_A });
  t.true(await directory.diskLeases.renew(lease, TTL_MS));
  await directory.diskLeases.release(lease);
  t.is((await take(directory, ref, HOST_B)).epoch, 2);
});

test('a host that acquires again gets a new epoch, and its former lease becomes invalid', async (t) => {
  const { directory } = t.context;
  const ref = newRef();
  const former = await take(directory, ref, HOST_A);
  const present = await take(directory, ref, HOST_A);
  t.true(present.epoch > former.epoch);
  t.false(await directory.diskLeases.renew(former, TTL_MS));
  await directory.diskLeases.release(former);
  t.true(await directory.diskLeases.renew(present, TTL_MS));
  t.deepEqual(await directory.diskLeases.acquire(ref, HOST_B, TTL_MS), { heldBy: HOST_A });
});

test('a lease that is not renewed lapses', async (t) => {
  const { directory } = t.context;
  const ref = newRef();
  const lapsed = await take(directory, ref, HOST_A, 50);
  const next = await waitFor('the lease', async () => {
    const lease = await directory.diskLeases.acquire(ref, HOST_B, TTL_MS);
    return 'heldBy' in lease ? undefined : lease;
  });
  t.true(next.epoch > lapsed.epoch);
  t.false(await directory.diskLeases.renew(lapsed, TTL_MS));
  await directory.diskLeases.release(lapsed);
  t.true(await directory.diskLeases.renew(next, TTL_MS));
});

test('a host whose lease lapsed is named to the next ones until it or another has the disk alone', async (t) => {
  const { diskLeases } = t.context.directory;
  const ref = newRef();
  const untilLapsed = async (hostId: string): Promise<AcquiredLease> => {
    const lease = await take(t.context.directory, ref, hostId, 50);
    await waitFor('it to lapse', async () => !(await diskLeases.renew(lease, 50)));
    return lease;
  };
  const lapsed = await untilLapsed(HOST_A);
  t.deepEqual((await untilLapsed(HOST_B)).formerHosts, [HOST_A]);
  t.deepEqual((await untilLapsed(HOST_A)).formerHosts, [HOST_B]);
  const third = await take(t.context.directory, ref, 'host-cccccccccccc');
  t.deepEqual([...third.formerHosts].sort(), [HOST_A, HOST_B]);
  await diskLeases.release(lapsed); // The former holder has detached the image later.
  await diskLeases.release(third);
  const again = await take(t.context.directory, ref, HOST_A);
  t.deepEqual(again.formerHosts, [HOST_B]);
  await diskLeases.recordAlone(again);
  // The lease of a former agent of this host: it says nothing of this one.
  await diskLeases.release(lapsed);
  await diskLeases.release(again);
  t.deepEqual((await take(t.context.directory, ref, HOST_B)).formerHosts, []);
});

test('in any order of steps at most one host has the lease, and epochs only grow', async (t) => {
  const { directory } = t.context;
  const step = fc.record({
    host: fc.constantFrom(HOST_A, HOST_B),
    action: fc.constantFrom('acquire', 'renew', 'release'),
    lease: fc.nat(20),
  });
  const property = fc.asyncProperty(fc.array(step, { maxLength: 30 }), async (steps) => {
    const ref = newRef();
    const leases: DiskLease[] = [];
    let current: DiskLease | undefined;
    for (const { host, action, lease: index } of steps) {
      const lease = leases[index % Math.max(leases.length, 1)];
      if (action === 'acquire') {
        const result = await directory.diskLeases.acquire(ref, host, TTL_MS);
        if ('heldBy' in result) {
          t.true(result.heldBy === current?.hostId);
          t.not(host, current?.hostId);
        } else {
          t.true(current === undefined || current.hostId === host);
          t.true(result.epoch > (leases.at(-1)?.epoch ?? 0));
          current = result;
          leases.push(result);
        }
      } else if (action === 'renew' && lease !== undefined) {
        t.is(await directory.diskLeases.renew(lease, TTL_MS), lease === current);
      } else if (lease !== undefined) {
        await directory.diskLeases.release(lease);
        if (lease === current) current = undefined;
      }
    }
  });
  await fc.assert(property, { numRuns: 40 });
});

test('a disk held by an unreachable host answers 503 until its lease expires', async (t) => {
  const { api, directory, stack } = t.context;
  const { id } = await createDisk(api);
  const ref = await refOf(stack, id);
  const lease = await take(directory, ref, HOST_A);
  const refused = await post(api, id, 'echo x > ran');
  t.is(refused.status, 503);
  t.is(refused.body.code, 'unavailable');
  t.true(Number(refused.headers.get('retry-after')) > 0);
  await directory.diskLeases.release(lease);
  t.is((await exec(api, id, 'ls')).stdout, '');
});

test('the lease is the agent’s while the disk is mounted', async (t) => {
  const { api, directory, stack } = t.context;
  const { id } = await createDisk(api);
  await exec(api, id, 'true');
  const ref = await refOf(stack, id);
  const held = await directory.diskLeases.acquire(ref, HOST_A, TTL_MS);
  t.true('heldBy' in held && held.heldBy.startsWith('host-'));
});

test('losing the lease ends a running command with outcome_unknown', async (t) => {
  const { api, directory, stack } = t.context;
  const { id } = await createDisk(api);
  const mark = `BERTH_MARK=${randomBytes(8).toString('hex')}`;
  const call = post(api, id, `export ${mark}; trap "" TERM; sleep 1000`);
  await waitFor('the command', async () => (await processesMarked(mark)).length > 0);
  const ref = await refOf(stack, id);
  const redis = await stack.redisClient();
  await redis.del(...(await redis.keys(`*:disk:${id}:lease`)));
  const thief = await take(directory, ref, HOST_A);
  const reply = await call;
  t.is(reply.status, 500);
  t.is(reply.body.code, 'outcome_unknown');
  t.deepEqual(await processesMarked(mark), []);
  await waitFor('the disk to be given up', async () => {
    const traces = await hostTraces(stack);
    return traces.every((trace) => !trace.includes(id));
  });
  t.true(await directory.diskLeases.renew(thief, TTL_MS), 'the thief’s lease was left alone');
  t.is((await post(api, id, 'true')).status, 503);
  await directory.diskLeases.release(thief);
  t.is((await exec(api, id, 'echo back')).stdout, 'back\n');
});

test.serial(
  'a deletion whose disk moves in the meantime succeeds and is finished later',
  async (t) => {
    const { api, stack, directory } = t.context;
    const { id } = await createDisk(api);
    const ref = await refOf(stack, id);
    process.kill(stack.agent.pid, 'SIGSTOP');
    let deleting: Promise<ApiReply<ApiBody>>;
    try {
      deleting = api.call('DELETE', `/api/disks/${id}`);
      await waitFor('the deletion to begin', async () => {
        const entry = await directory.disks.get(ref.accountId, id);
        return entry?.record.status === 'deleting';
      });
      await take(directory, ref, HOST_B, 2_000);
    } finally {
      process.kill(stack.agent.pid, 'SIGCONT');
    }
    t.is((await deleting).status, 200);
    t.is((await api.call('GET', `/api/disks/${id}`)).status, 404, 'gone for its owner');
    // The other host's lease ends, and the deletion is finished without another call.
    await waitFor('its data to be gone', async () => !existsSync(diskFolder(stack, id)), 60_000);
  },
);

test.serial('a host that stops releases its disks to others', async (t) => {
  const { api, stack } = t.context;
  const { id } = await createDisk(api);
  await exec(api, id, 'echo kept > file');
  const second = await otherAgent(stack, 'second');
  second.start();
  try {
    await waitFor('registration', async () => (await second.readLog()).includes('link:registered'));
    t.is(await stack.agent.stop(), 0);
    t.is((await exec(api, id, 'cat file; echo more >> file')).stdout, 'kept\n');
    await stack.startAgent();
    t.is((await exec(api, id, 'cat file')).stdout, 'kept\nmore\n');
  } finally {
    t.is(await second.stop(), 0);
  }
  t.is((await exec(api, id, 'cat file')).stdout, 'kept\nmore\n');
});

(isFull ? test.serial : test.serial.skip)(
  'a host that dies is followed by another when its lease has lapsed',
  async (t) => {
    const { api, stack } = t.context;
    const { id } = await createDisk(api);
    await exec(api, id, 'echo kept > file; sync file');
    const second = await otherAgent(stack, 'heir');
    second.start();
    try {
      await waitFor('registration', async () =>
        (await second.readLog()).includes('link:registered'),
      );
      await stack.agent.stop('SIGKILL');
      t.is((await post(api, id, 'cat file')).status, 503);
      const reply = await waitFor(
        'the lease to lapse',
        async () => {
          const answer = await post(api, id, 'cat file');
          return answer.status === 200 ? answer : undefined;
        },
        40_000,
      );
      t.like(reply.body.data, { stdout: 'kept\n' });
      await stack.startAgent();
    } finally {
      t.is(await second.stop(), 0);
    }
  },
);

(isFull ? test.serial : test.serial.skip)(
  'Redis stays away: the disk is given up before the lease lapses, the command’s outcome unknown',
  async (t) => {
    const { api, stack } = t.context;
    const { id } = await createDisk(api);
    const mark = `BERTH_MARK=${randomBytes(8).toString('hex')}`;
    const call = post(api, id, `export ${mark}; sleep 1000`);
    await waitFor('the command', async () => (await processesMarked(mark)).length > 0);
    await stack.redis.stop('SIGKILL');
    const reply = await call;
    t.is(reply.body.code, 'outcome_unknown');
    t.deepEqual(await processesMarked(mark), []);
    await stack.startRedis();
    await waitFor('the disk', async () => (await post(api, id, 'true')).status === 200, 40_000);
  },
);
