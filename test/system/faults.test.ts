/*
 * Many commands on one disk while parts of the system die. Each command leaves its marks on
 * the disk: what callers were told is compared with what is there.
 */
import assert from 'node:assert';
import { randomBytes } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import anyTest, { type ExecutionContext, type TestFn } from 'ava';
import { ApiClient } from '../helpers/api.ts';
import { createDisk, exec, newName } from '../helpers/disks.ts';
import { hostTraces, processesMarked } from '../helpers/host.ts';
import { Stack } from '../helpers/stack.ts';
import { DISK_LIMITS } from '../../agent/disks/limits.ts';
import { waitFor } from '../helpers/wait.ts';
import { isFull } from '../helpers/full.ts';

interface Context {
  stack: Stack;
  api: ApiClient;
  /** The same account through the other control node. */
  otherApi: ApiClient;
  /** The answers that callers got, to be checked once more when all faults are over. */
  told: { diskId: string; answers: Answer[] }[];
}

const test = anyTest as TestFn<Context>;

const AT_ONCE = 200;
/** Commands of each round with a fault, of which full runs have more. */
const COMMANDS = isFull ? 200 : 80;
/** How many commands begin before the fault, and how many of them are answered before it. */
const BEGIN_BEFORE_FAULT = COMMANDS * 0.6;
const ANSWERED_BEFORE_FAULT = COMMANDS * 0.15;
/** The time over which the other commands begin, during and after the fault. */
const SPREAD_MS = 2_000;
const EXEC_TIMEOUT_MS = 30_000;
const HANGS_AFTER_MS = EXEC_TIMEOUT_MS + 20_000;

test.before(async (t) => {
  const stack = await Stack.start({ EXEC_TIMEOUT_MS: String(EXEC_TIMEOUT_MS) });
  t.context.stack = stack;
  const other = await stack.addControl();
  await other.start();
  const api = await stack.newClient();
  const otherApi = new ApiClient(other.environment['PUBLIC_BASE_URL'] ?? '', api.key);
  Object.assign(t.context, { api, otherApi, told: [] });
  await waitFor('the agent at both nodes', async () => {
    const found = (await stack.agent.readLog()).match(/link:registered/gu);
    return found !== null && found.length >= 2;
  });
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

interface Answer {
  readonly id: string;
  readonly status: number;
  /**
   * The error code, or `ok`, `wrong`, `cut` (the connection broke) or `hung` when there is none.
   */
  readonly code: string;
}

/** Runs a command that must not run twice and that leaves a mark each time it runs. */
async function runMarked(api: ApiClient, diskId: string, id: string): Promise<Answer> {
  const command = `echo ${id} >> log; set -C; : > only-${id} && echo ran ${id}`;
  const signal = AbortSignal.timeout(HANGS_AFTER_MS);
  try {
    const path = `/api/disks/${diskId}/exec`;
    const { status, body } = await api.call('POST', path, { command }, {}, signal);
    if (!body.success) return { id, status, code: body.code };
    const { exitCode, stdout } = body.data as { exitCode: number; stdout: string };
    const right = exitCode === 0 && stdout === `ran ${id}\n`;
    return { id, status, code: right ? 'ok' : 'wrong' };
  } catch (error) {
    if (error instanceof assert.AssertionError) throw error;
    return { id, status: 0, code: signal.aborted ? 'hung' : 'cut' };
  }
}

const newIds = (count: number): string[] =>
  Array.from({ length: count }, () => randomBytes(6).toString('hex'));

/** Runs the commands, alternating between the callers, with a fault in the middle. */
async function runUnderFault(
  apis: readonly ApiClient[],
  diskId: string,
  fault: () => Promise<void>,
): Promise<Answer[]> {
  const ready = Promise.withResolvers<void>();
  let answered = 0;
  const answers = newIds(COMMANDS).map(async (id, index) => {
    const late = index - BEGIN_BEFORE_FAULT;
    if (late >= 0) {
      await ready.promise;
      await sleep((late / (COMMANDS - BEGIN_BEFORE_FAULT)) * SPREAD_MS);
    }
    const api = apis[index % apis.length];
    assert(api !== undefined);
    const answer = await runMarked(api, diskId, id);
    answered += 1;
    if (answered === ANSWERED_BEFORE_FAULT) ready.resolve();
    return answer;
  });
  await ready.promise;
  await fault();
  return Promise.all(answers);
}

/** How often each command ran, counted from its marks on the disk. */
async function readMarks(api: ApiClient, diskId: string): Promise<Map<string, number>> {
  const { stdout } = await exec(api, diskId, 'touch log; cat log; ls only-* 2> /dev/null');
  const counts = new Map<string, number>();
  const files = new Set<string>();
  for (const line of stdout.trimEnd().split('\n')) {
    if (line.startsWith('only-')) files.add(line.slice('only-'.length));
    else counts.set(line, (counts.get(line) ?? 0) + 1);
  }
  for (const id of files) assert(counts.has(id), `${id} left its file but no line`);
  return counts;
}

/**
 * How often the command may have run, given its answer. There is no `timeout`: one that has not
 * begun by its deadline is `unavailable`, and once begun it ends at once.
 */
const runsAllowed: Record<string, readonly [least: number, most: number]> = {
  ok: [1, 1],
  unavailable: [0, 0],
  no_capacity: [0, 0],
  outcome_unknown: [0, 1],
  cut: [0, 1],
};

/** The answers that the marks on the disk contradict. */
function lies(answers: readonly Answer[], marks: ReadonlyMap<string, number>): string[] {
  return answers.flatMap(({ id, status, code }) => {
    const runs = marks.get(id) ?? 0;
    const [least, most] = runsAllowed[code] ?? [1, 0];
    return runs >= least && runs <= most ? [] : [`${id} answered ${status} ${code}, ran ${runs}×`];
  });
}

const countOf = (answers: readonly Answer[], code: string): number =>
  answers.filter((answer) => answer.code === code).length;

const works = (api: ApiClient, diskId: string) => async (): Promise<boolean> => {
  const reply = await api.call('POST', `/api/disks/${diskId}/exec`, { command: 'true' });
  return reply.status === 200;
};

/** Keeps creating disks, disk users and keys until told to stop. */
class Acknowledged {
  readonly diskIds: string[] = [];
  readonly userNames: string[] = [];
  readonly keys: string[] = [];
  readonly #api: ApiClient;
  readonly #userDiskId: string;
  #stopped = false;
  #making: Promise<void> = Promise.resolve();

  constructor(api: ApiClient, userDiskId: string) {
    this.#api = api;
    this.#userDiskId = userDiskId;
    this.#making = this.#makeAll();
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    await this.#making;
  }

  async #makeAll(): Promise<void> {
    while (!this.#stopped) {
      await this.#make();
      await sleep(100);
    }
  }

  async #make(): Promise<void> {
    const api = this.#api;
    const disk = await api.call('POST', '/api/disks', { name: newName() });
    if (disk.body.success) this.diskIds.push((disk.body.data as { id: string }).id);
    const nickname = newName();
    const userPath = `/api/disks/${this.#userDiskId}/users`;
    const user = await api.call('POST', userPath, { type: 'token', nickname });
    if (user.body.success) this.userNames.push(nickname);
    const key = await api.call('POST', '/api/tokens', { name: newName() });
    if (key.body.success) this.keys.push((key.body.data as { token: string }).token);
  }

  /** Whether there is something that a fault could take away. */
  get hasSome(): boolean {
    return this.diskIds.length > 0 && this.userNames.length > 0 && this.keys.length > 0;
  }

  /** The acknowledged things that are missing. */
  async missing(): Promise<string[]> {
    const missing: string[] = [];
    for (const id of this.diskIds) {
      const { status } = await this.#api.call('GET', `/api/disks/${id}`);
      if (status !== 200) missing.push(`disk ${id}: ${status}`);
    }
    const disk = await this.#api.data<{ authorizedUsers: { nickname?: string }[] }>(
      'GET',
      `/api/disks/${this.#userDiskId}`,
    );
    const names = new Set(disk.authorizedUsers.map(({ nickname }) => nickname));
    missing.push(...this.userNames.filter((name) => !names.has(name)));
    for (const key of this.keys) {
      const { status } = await this.#api.withKey(key).call('GET', '/api/disks');
      if (status !== 200) missing.push(`key: ${status}`);
    }
    return missing;
  }
}

/** Runs a round: commands and creations, a fault, recovery, then a check of everything. */
async function survive(
  t: ExecutionContext<Context>,
  apis: readonly ApiClient[],
  witness: ApiClient,
  fault: () => Promise<void>,
): Promise<Answer[]> {
  const { id } = await createDisk(witness);
  const acknowledged = new Acknowledged(witness, id);
  await waitFor('something to be acknowledged', () => Promise.resolve(acknowledged.hasSome));
  const answers = await runUnderFault(apis, id, fault);
  await acknowledged.stop();
  await waitFor('everything to work again', works(witness, id));
  t.deepEqual(lies(answers, await readMarks(witness, id)), []);
  t.deepEqual(await acknowledged.missing(), []);
  t.true(countOf(answers, 'ok') >= ANSWERED_BEFORE_FAULT);
  t.context.told.push({ diskId: id, answers });
  return answers;
}

test.serial(
  `${AT_ONCE} commands at once on one disk are all answered, each ran once`,
  async (t) => {
    const { api, otherApi } = t.context;
    const { id } = await createDisk(api);
    const answers = await Promise.all(
      newIds(AT_ONCE).map((each, index) => runMarked(index % 2 === 0 ? api : otherApi, id, each)),
    );
    t.is(countOf(answers, 'ok'), AT_ONCE);
    const marks = await readMarks(api, id);
    t.is(marks.size, AT_ONCE);
    t.deepEqual(lies(answers, marks), []);
  },
);

test.serial('Redis is stopped and started again under load', async (t) => {
  const { stack, api, otherApi } = t.context;
  await survive(t, [api, otherApi], api, async () => {
    await stack.redis.stop();
    await sleep(500);
    await stack.startRedis();
  });
});

test.serial('Redis is killed and started again under load', async (t) => {
  const { stack, api, otherApi } = t.context;
  await survive(t, [api, otherApi], api, async () => {
    await stack.redis.stop('SIGKILL');
    await sleep(500);
    await stack.startRedis();
  });
});

test.serial('the agent is killed and started again under load', async (t) => {
  const { stack, api, otherApi } = t.context;
  await survive(t, [api, otherApi], api, async () => {
    await stack.agent.stop('SIGKILL');
    await stack.startAgent();
  });
});

test.serial('one of two control nodes is killed under load', async (t) => {
  const { stack, api, otherApi } = t.context;
  const answers = await survive(t, [api, otherApi], api, async () => {
    await stack.controls[1]?.daemon.stop('SIGKILL');
  });
  const throughTheOther = answers.filter((_, index) => index % 2 === 0);
  t.is(countOf(throughTheOther, 'ok'), throughTheOther.length);
  await stack.controls[1]?.start();
  await waitFor('the agent at the new node', async () => {
    const path = `/api/disks/${t.context.told.at(-1)?.diskId}/exec`;
    return (await otherApi.call('POST', path, { command: 'true' })).status === 200;
  });
});

test.serial('the agent is killed: its callers know soon, and nothing is left behind', async (t) => {
  const { stack, api } = t.context;
  const { id } = await createDisk(api);
  const mark = `BERTH_MARK=${randomBytes(8).toString('hex')}`;
  const command = `export ${mark}; echo begun > begun; (setsid sleep 1000 &); sleep 1000`;
  const call = api.call('POST', `/api/disks/${id}/exec`, { command });
  await waitFor('the command', async () => (await processesMarked(mark)).length >= 2);
  const before = await hostTraces(stack);
  t.true(before.some((trace) => trace.includes(id)));

  const killedAt = performance.now();
  await stack.agent.stop('SIGKILL');
  const { status, body } = await call;
  t.true(performance.now() - killedAt < DISK_LIMITS.diskLeaseTtlMs);
  t.deepEqual([status, body.code], [500, 'outcome_unknown']);

  await stack.startAgent();
  t.deepEqual(await processesMarked(mark), []);
  const after = new Set(await hostTraces(stack));
  t.deepEqual(
    before.filter((trace) => after.has(trace)),
    [],
  );
  t.is((await exec(api, id, 'cat begun')).stdout, 'begun\n');
});

test.serial('a job lost on a broken connection to Redis is refused', async (t) => {
  const { stack, api } = t.context;
  const { id } = await createDisk(api);
  process.kill(stack.agent.pid, 'SIGSTOP');
  const call = runMarked(api, id, 'lost');
  const redis = await stack.redisClient();
  const waiting = await waitFor('the queue', async () => {
    const [key] = await redis.keys('*:bull:exec-*:wait');
    return key;
  });
  // The state of the queue after its reply to the agent was lost.
  await redis.rpoplpush(waiting, waiting.replace(/wait$/u, 'active'));
  process.kill(stack.agent.pid, 'SIGCONT');
  t.like(await call, { status: 503, code: 'unavailable' });
  t.is((await exec(api, id, 'ls')).stdout, '');
});

test.serial('commands reported as not begun never ran later', async (t) => {
  const { api, told } = t.context;
  for (const { diskId, answers } of told) {
    t.deepEqual(lies(answers, await readMarks(api, diskId)), []);
  }
});
