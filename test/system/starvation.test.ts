/*
 * Processes that are short of descriptors, process ids, memory or storage: they say so, and
 * recover.
 */
import anyTest, { type TestFn } from 'ava';
import { execFileSync } from 'node:child_process';
import { appendFile, mkdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { Journal } from '../../agent/system/journal/journal.ts';
import { paths } from '../../agent/system/paths.ts';
import { descriptorsOf, HeldConnections } from '../helpers/connections.ts';
import { ControlGroup } from '../helpers/control-groups.ts';
import { exec, newName } from '../helpers/disks.ts';
import { s3UrlOf } from '../helpers/objects.ts';
import { serveDisk, type ServedDisk } from '../helpers/served-disk.ts';
import { mountSmall } from '../helpers/small-storage.ts';
import { waitFor } from '../helpers/wait.ts';

interface Context extends ServedDisk {
  /** Holds what is the agent's own, the journal too. */
  readonly dataStorage: ReturnType<typeof mountSmall>;
}

const test = (anyTest as TestFn<Context>).serial;

/** Longer than the interval of every repeated task. */
const STARVED_MS = 6_000;
const DESCRIPTORS = 4096;
const CALL_MS = 1_000;
const MiB = 1024 ** 2;
const DATA_PATH = `/tmp/berth-test-data-${process.pid}`;
/** Programs that the agent finds before the host's own. */
const PROGRAMS = join(DATA_PATH, 'bin');
const RESERVE_BYTES = 16 * MiB;

test.before(async (t) => {
  Object.assign(t.context, { dataStorage: mountSmall(DATA_PATH, 64) });
  const served = await serveDisk({
    AGENT_DATA_DIR: join(DATA_PATH, 'agent'),
    STORAGE_RESERVE_BYTES: String(RESERVE_BYTES),
    PATH: `${PROGRAMS}:${process.env['PATH']}`,
  });
  Object.assign(t.context, served);
  await exec(served.api, served.diskId, 'echo content > file');
});

test.after.always(async (t) => {
  await t.context.stack.stop();
  t.context.dataStorage.unmount();
});

const limitDescriptors = (pid: number, count: number): void => {
  execFileSync('prlimit', ['--pid', String(pid), `--nofile=${count}:${DESCRIPTORS}`]);
};

async function recovers({ stack, api, objects, diskId }: Context): Promise<void> {
  await waitFor('recovery', async () => {
    if (!stack.agent.isRunning || !stack.control.isRunning) throw new Error('a process ended');
    const put = await objects.put(diskId, 'new', 'more').catch(() => undefined);
    const ran = await api.call('POST', `/api/disks/${diskId}/exec`, { command: 'cat file new' });
    return put?.status === 200 && ran.status === 200;
  });
}

/** Keeps making calls of all kinds. @returns the statuses of their answers, 0 for no answer */
async function callThroughout({ api, objects, diskId }: Context, ms: number): Promise<Set<number>> {
  const statuses = new Set<number>();
  const note = (call: Promise<{ status: number }>): Promise<unknown> =>
    Promise.race([
      call.then(
        ({ status }) => statuses.add(status),
        () => statuses.add(0),
      ),
      // Without descriptors a server cannot accept a connection, nor even refuse it.
      sleep(CALL_MS),
    ]);
  const until = performance.now() + ms;
  while (performance.now() < until) {
    await Promise.all([
      note(api.call('POST', `/api/disks/${diskId}/exec`, { command: 'cat file' })),
      note(api.call('GET', '/api/disks')),
      note(objects.get(diskId, 'file')),
      note(objects.put(diskId, 'new', 'content')),
      sleep(100),
    ]);
  }
  return statuses;
}

test('an agent and a control node without descriptors survive and serve again once they have some', async (t) => {
  const { stack } = t.context;
  const pids = [stack.agent.pid, stack.control.pid];
  for (const pid of pids) {
    using held = new HeldConnections();
    limitDescriptors(pid, 3); // Nothing new can be opened; open descriptors stay.
    await held.open(s3UrlOf(stack), 50, { from: '127.9.3.1' });
    const statuses = await callThroughout(t.context, STARVED_MS);
    t.true(statuses.size > 0);
    limitDescriptors(pid, DESCRIPTORS);
    await recovers(t.context);
  }
  t.deepEqual([stack.agent.pid, stack.control.pid], pids);
});

test('a shortage of descriptors leaks none', async (t) => {
  const { stack } = t.context;
  const { pid } = stack.agent;
  await recovers(t.context);
  const before = await descriptorsOf(pid);
  for (let round = 0; round < 20; round += 1) {
    limitDescriptors(pid, (await descriptorsOf(pid)) + (round % 7));
    await callThroughout(t.context, 100);
    limitDescriptors(pid, DESCRIPTORS);
    await callThroughout(t.context, 50);
  }
  await recovers(t.context);
  await waitFor('all of them to be closed', async () => (await descriptorsOf(pid)) <= before + 12);
  t.is(stack.agent.pid, pid);
});

test('an agent that can start no process reports it and recovers once it can', async (t) => {
  const { stack, api, diskId } = t.context;
  const { pid } = stack.agent;
  await recovers(t.context);
  {
    await using group = await ControlGroup.make('pids', 1);
    await group.add(pid);
    const statuses = new Set<number>();
    await waitFor('a refusal', async () => {
      const { status, body } = await api.call('POST', `/api/disks/${diskId}/exec`, {
        command: 'true',
      });
      statuses.add(status);
      return status === 503 && body.code === 'no_capacity';
    });
    t.is((await api.call('GET', '/api/disks')).status, 200);
    t.false(statuses.has(0));
  }
  await recovers(t.context);
  t.is(stack.agent.pid, pid);
});

test('a call whose host program is killed for want of memory gets 503, and succeeds later', async (t) => {
  const { stack, api } = t.context;
  const { pid } = stack.agent;
  const name = newName();
  const create = () => api.call('POST', '/api/disks', { name });
  {
    await using group = await ControlGroup.make('memory', MiB / 16);
    const starved = join(PROGRAMS, 'mke2fs');
    const script = `#!/bin/sh\necho 0 > ${group.procs}\nexec /usr/sbin/mke2fs "$@"\n`;
    await mkdir(PROGRAMS, { recursive: true });
    await writeFile(starved, script, { mode: 0o755 });
    try {
      const { status, body } = await create();
      t.deepEqual([status, body.code], [503, 'no_capacity']);
      t.true((await group.oomKills()) > 0);
    } finally {
      await rm(starved);
    }
  }
  t.is((await create()).status, 201);
  t.is(stack.agent.pid, pid);
});

/** Answers about commands and objects, to be compared with what is there. */
class Told {
  readonly lines: string[] = [];
  readonly refused: string[] = [];
  readonly objects: string[] = [];
  readonly codes = new Set<string>();
  readonly #served: ServedDisk;
  readonly #prefix = newName();
  #count = 0;

  constructor(served: ServedDisk) {
    this.#served = served;
  }

  /** A command that appends a line, and an object. @param also what the command does besides */
  async add(also = 'true'): Promise<void> {
    const { api, objects, diskId } = this.#served;
    this.#count += 1;
    const name = `${this.#prefix}-${this.#count}`;
    const command = `echo ${name} >> ${this.#prefix}; ${also}`;
    await Promise.all([
      api.call('POST', `/api/disks/${diskId}/exec`, { command }).then(({ status, body }) => {
        if (status === 200) this.lines.push(name);
        else this.codes.add(body.code);
        if (status === 503) this.refused.push(name);
      }),
      objects.put(diskId, name, name).then(
        ({ status }) => status === 200 && this.objects.push(name),
        () => undefined,
      ),
    ]);
  }

  /** @returns what is not as callers were told */
  async findBroken(): Promise<string[]> {
    const { api, objects, diskId } = this.#served;
    const { stdout } = await exec(api, diskId, `cat ${this.#prefix}`);
    const ran = stdout.trimEnd().split('\n');
    const lines = this.lines.filter((line) => ran.filter((each) => each === line).length !== 1);
    const refused = this.refused.filter((line) => ran.includes(line));
    const twice = ran.filter((line, index) => ran.indexOf(line) !== index);
    const kept = await Promise.all(
      this.objects.map(async (name) => (await objects.get(diskId, name)).text === name),
    );
    return [...lines, ...refused, ...twice, ...this.objects.filter((_, index) => !kept[index])];
  }
}

test('an agent killed for want of memory loses nothing that it acknowledged', async (t) => {
  const { stack } = t.context;
  await recovers(t.context);
  const told = new Told(t.context);
  for (let count = 0; count < 3; count += 1) await told.add();
  {
    await using group = await ControlGroup.make('memory', 16 * MiB);
    await group.add(stack.agent.pid);
    const large = 'head -c 12M /dev/zero | tr "\\0" a';
    while (stack.agent.isRunning) await Promise.all([told.add(), told.add(large)]);
    t.true((await group.oomKills()) > 0);
  }
  const known = new Set(['outcome_unknown', 'unavailable', 'no_capacity']);
  t.deepEqual(
    [...told.codes].filter((code) => !known.has(code)),
    [],
  );
  await stack.agent.stop();
  await stack.startAgent();
  await recovers(t.context);
  t.true(told.lines.length >= 3 && told.objects.length >= 3);
  t.deepEqual(await told.findBroken(), []);
});

/** A figure of the agent's own metrics. */
async function metric({ stack }: ServedDisk, name: string): Promise<number> {
  const { AGENT_ADMIN_PORT: port } = stack.environment;
  const text = await (await fetch(`http://127.0.0.1:${port}/metrics`)).text();
  return Number(new RegExp(`^${name}\\{[^}]*\\} (\\S+)$`, 'mu').exec(text)?.[1] ?? Number.NaN);
}

/** How many commands the journal has. */
async function begunExecs(): Promise<number> {
  const journal = await Journal.openToRead(paths.journal(join(DATA_PATH, 'agent')));
  try {
    return (await journal.execs()).length;
  } finally {
    await journal.close();
  }
}

test('an agent refuses work while its journal has no free space, and works again after', async (t) => {
  const { stack, api, diskId } = t.context;
  await recovers(t.context);
  const { pid } = stack.agent;
  const told = new Told(t.context);
  const ballast = join(DATA_PATH, 'ballast');
  const fill = () => appendFile(ballast, Buffer.alloc(64 * MiB)).catch(() => undefined);
  await told.add();
  await fill();
  await waitFor('refusals', async () => {
    await Promise.all([fill(), told.add(), told.add()]);
    return told.refused.length > 5;
  });
  // Some were under way when the journal could no longer be synced: before they ran, or while.
  const underWay = new Set(['unavailable', 'outcome_unknown']);
  t.deepEqual(
    [...told.codes].filter((code) => !underWay.has(code)),
    ['host_full'],
  );
  await waitFor('the metric', async () => {
    const free = await metric(t.context, 'berth_storage_free_bytes');
    return free < (await metric(t.context, 'berth_storage_reserve_bytes'));
  });
  const created = await api.call('POST', '/api/disks', { name: newName() });
  t.deepEqual([created.status, created.body.code], [503, 'host_full']);
  t.is((await api.call('GET', `/api/disks/${diskId}`)).status, 200);
  t.is(stack.agent.pid, pid);
  // Nor does it keep the next agent from starting.
  await stack.agent.stop('SIGKILL');
  await fill();
  await stack.startAgent();
  await rm(ballast);
  await recovers(t.context);
  t.deepEqual(await told.findBroken(), []);
  await waitFor('the journal to tell of nothing', async () => (await begunExecs()) === 0);
});
