/*
 * Commands, disks and sandboxes on a Redis Cluster while one of its primaries is killed or falls
 * silent, and while the slots that they use move. What callers were told is compared with what is
 * there.
 */
import test, { type ExecutionContext } from 'ava';
import { queues } from '../../shared/directory/keys.ts';
import type { ApiClient } from '../helpers/api.ts';
import { createDisk, exec, newName } from '../helpers/disks.ts';
import {
  type Answer,
  findLies,
  repeat,
  runMarked,
  runMarkedIn,
} from '../helpers/marked-commands.ts';
import { RedisCluster } from '../helpers/redis-cluster.ts';
import { containerSettings, createSandbox, execIn } from '../helpers/sandboxes.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';

const CALLERS = 4;

/** Creates a disk. @returns its name once it was acknowledged */
async function makeDisk(api: ApiClient): Promise<string | undefined> {
  const name = newName();
  const { status } = await api.call('POST', '/api/disks', { name });
  return status === 201 ? name : undefined;
}

const isOk = async (answer: Promise<Answer>): Promise<boolean> => (await answer).code === 'ok';

/** Calls of one account while something is done to Redis. */
class Load {
  readonly #api: ApiClient;
  readonly #diskId: string;
  readonly #sandboxId: string;
  readonly #commands: Promise<Answer[]>;
  readonly #commandsInSandbox: Promise<Answer[]>;
  readonly #disks: Promise<(string | undefined)[]>;
  #isOver = false;

  private constructor(api: ApiClient, diskId: string, sandboxId: string) {
    this.#api = api;
    this.#diskId = diskId;
    this.#sandboxId = sandboxId;
    const isOver = (): boolean => this.#isOver;
    const callers = Array.from({ length: CALLERS }, () =>
      repeat(isOver, () => runMarked(api, diskId)),
    );
    this.#commands = Promise.all(callers).then((all) => all.flat());
    this.#commandsInSandbox = repeat(isOver, () => runMarkedIn(api, sandboxId));
    this.#disks = repeat(isOver, () => makeDisk(api));
  }

  static async start(api: ApiClient): Promise<Load> {
    const { id } = await createDisk(api);
    const { sandbox_id: sandboxId } = await createSandbox(api);
    const load = new Load(api, id, sandboxId);
    await load.areServed();
    return load;
  }

  /** Resolves once each kind of call has done what it should. */
  async areServed(): Promise<void> {
    await waitFor('a command to run', () => isOk(runMarked(this.#api, this.#diskId)));
    await waitFor('one in the sandbox', () => isOk(runMarkedIn(this.#api, this.#sandboxId)));
    await waitFor('a disk to be made', () => makeDisk(this.#api));
  }

  /** Ends the calls, and looks for what contradicts their answers. */
  async verify(t: ExecutionContext): Promise<void> {
    this.#isOver = true;
    const commands = await this.#commands;
    const { stdout } = await exec(this.#api, this.#diskId, 'cat log');
    t.deepEqual(findLies(commands, stdout), []);
    const { stdout: log } = await execIn(this.#api, this.#sandboxId, 'cat /root/log');
    t.deepEqual(findLies(await this.#commandsInSandbox, log ?? ''), [], 'in the sandbox');
    t.true(commands.some(({ code }) => code === 'ok'));
    const made = (await this.#disks).filter((name) => name !== undefined);
    t.true(made.length > 0);
    const lost: string[] = [];
    for (const name of made) {
      const found = await this.#api.data<unknown[]>('GET', `/api/disks?name=${name}`);
      if (found.length === 0) lost.push(name);
    }
    t.deepEqual(lost, [], 'what callers were told of');
  }
}

/** Runs a stack on a Redis Cluster, of whose nodes one that it was told of is not there. */
async function withStack(
  work: (parts: { stack: Stack; cluster: RedisCluster; queue: string }) => Promise<void>,
): Promise<void> {
  await using cluster = await RedisCluster.start();
  const stack = await Stack.start({ ...(await cluster.settings()), ...containerSettings() });
  try {
    const { hosts } = await stack.openDirectory();
    const [host] = await waitFor('the host', async () => {
      const found = await hosts.list();
      return found.length > 0 && found;
    });
    await work({ stack, cluster, queue: queues.prefix(host?.hostId ?? '') });
  } finally {
    await stack.stop();
  }
}

test.serial('nothing runs twice and nothing is lost when a primary is killed', (t) =>
  withStack(async ({ stack, cluster, queue }) => {
    const load = await Load.start(await stack.newClient());
    const former = await cluster.primary(queue); // The host's queues are there.
    const killedAt = performance.now();
    process.kill(former.daemon.pid, 'SIGKILL');
    const next = await cluster.successor(former, queue);
    t.log(`another primary after ${Math.round(performance.now() - killedAt)} ms`);
    t.not(next.port, former.port);
    // Its successor has no replica until it is back, and so nothing that is confirmed.
    await cluster.restart(former);
    await load.areServed();
    t.log(`all calls served after ${Math.round(performance.now() - killedAt)} ms`);
    await load.verify(t);
  }),
);

/** Resolves once the host takes its work from this node. */
const serves = (cluster: RedisCluster, node: RedisCluster['nodes'][number]): Promise<unknown> =>
  waitFor('the host to take its work from the new primary', () =>
    cluster.ask(node, async (redis) => String(await redis.client('LIST')).includes('cmd=bzpopmin')),
  );

test.serial('nothing runs twice and nothing is lost when a primary falls silent', (t) =>
  withStack(async ({ stack, cluster, queue }) => {
    const load = await Load.start(await stack.newClient());
    const { accounts } = await stack.openDirectory();
    const [account] = await accounts.list();
    // Woken while clients still take it for a primary, or when the host has turned to another.
    for (const [key, until] of [
      [queue, 'it has a successor'],
      [queue, 'its successor serves'],
      [`{${account?.id}}`, 'it has a successor'],
    ] as const) {
      const former = await cluster.primary(key);
      const stoppedAt = performance.now();
      {
        await using _silent = cluster.silence(former);
        const next = await cluster.successor(former, key);
        t.not(next.port, former.port);
        if (until === 'its successor serves') await serves(cluster, next);
        t.log(`silent for ${Math.round(performance.now() - stoppedAt)} ms, until ${until}`);
      }
      // Its successor has no replica until it follows, and so nothing that is confirmed.
      await cluster.recovered();
      await load.areServed();
      t.log(`all calls served after ${Math.round(performance.now() - stoppedAt)} ms`);
    }
    await load.verify(t);
  }),
);

test.serial(
  'nothing runs twice and nothing is lost when the slots of a host and an account move',
  (t) =>
    withStack(async ({ stack, cluster, queue }) => {
      const api = await stack.newClient();
      const { accounts } = await stack.openDirectory();
      const load = await Load.start(api);
      const [account] = await accounts.list();
      for (const key of [queue, `{${account?.id}}`, queue]) {
        const from = await cluster.primary(key);
        const to = await cluster.anotherPrimary(from);
        await cluster.moveSlot(key, from, to);
        t.is(await cluster.primary(key), to);
        await load.areServed();
      }
      await load.verify(t);
    }),
);
