/*
 * Hosts that are cut off, or whose agent is gone: another host takes their disks, and never do two
 * hosts write to one. Each such host has a network namespace and a control node of its own, so that
 * these tests can run at the same time; one more host, the heir, can be reached by all.
 */
import assert from 'node:assert';
import { execFile } from 'node:child_process';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import anyTest, { type ExecutionContext, type TestFn } from 'ava';
import { paths } from '../../agent/system/paths.ts';
import { leaseHolder } from '../../shared/directory/disk-leases.ts';
import { DISK_LIMITS } from '../../agent/disks/limits.ts';
import { REGION_LIMITS } from '../../control/region/limits.ts';
import { ApiClient, type ApiBody, type ApiReply } from '../helpers/api.ts';
import { createDisk, diskFolder, exec, newName } from '../helpers/disks.ts';
import { diskMount, runDirOf } from '../helpers/host.ts';
import { loopsOn as loopNamesOn } from '../helpers/loops.ts';
import { Network } from '../helpers/network.ts';
import { Stack, type StackNode } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';
import { MiB } from '../../shared/units.ts';
import { isFull } from '../helpers/full.ts';

const test = anyTest as TestFn<{ stack: Stack; networks: Network[] }>;
const fullTest = isFull ? test : test.skip;
const run = promisify(execFile);

const HEIR_SLOTS = 4;
const HOST_SLOTS = 16;

test.before(async (t) => {
  const networks = Array.from({ length: isFull ? 4 : 2 }, () => Network.create());
  t.context.networks = await Promise.all(networks);
  const redisHosts = t.context.networks.map(({ hostAddresses }) => hostAddresses[1]);
  t.context.stack = await Stack.start(
    { EXEC_SLOTS: String(HEIR_SLOTS), DISK_SIZE_BYTES: String(64 * MiB) },
    redisHosts,
  );
});

test.after.always(async (t) => {
  try {
    await t.context.stack.stop();
  } finally {
    await Promise.all(t.context.networks.map((network) => network.remove()));
  }
});

/** A host with a disk to which a command keeps writing. */
interface Scene {
  readonly stack: Stack;
  readonly network: Network;
  readonly agent: StackNode;
  readonly hostId: string;
  /** A client of the control node that the host and the heir are linked to. */
  readonly api: ApiClient;
  readonly diskId: string;
  readonly image: string;
  readonly writing: Promise<ApiReply<ApiBody>>;
  /** The value of the disk's lease. */
  readonly readLease: () => Promise<{ holder: string | undefined; remainingMs: number }>;
}

const WRITE = 'i=0; while true; do i=$((i + 1)); echo "line $i" >> log; sleep 0.02; done';

async function setScene(stack: Stack, network: Network | undefined): Promise<Scene> {
  assert(network !== undefined);
  const [controlHost, redisHost] = network.hostAddresses;
  const redisUrl = new URL(stack.environment['REDIS_URL'] ?? '');
  redisUrl.hostname = redisHost;
  const control = await stack.addControl({ CONTROL_HOST: controlHost });
  const agent = await stack.addAgent(
    {
      AGENT_HOST: network.address,
      REDIS_URL: redisUrl.href,
      EXEC_SLOTS: String(HOST_SLOTS),
    },
    network.within,
  );
  await Promise.all([control.start(), agent.start()]);
  const { key } = await stack.newClient();
  const api = new ApiClient(control.environment['PUBLIC_BASE_URL'] ?? '', key);
  const { id } = await waitFor('the host', () => createDisk(api).catch(() => undefined));
  const hostId = (await readFile(paths.hostId(dataDirOf(agent)), 'utf8')).trim();
  const redis = await stack.redisClient();
  await exec(api, id, 'touch log; seq 20000 > data; sha256sum data > sum; sync');
  const [leaseKey = ''] = await redis.keys(`*:disk:${id}:lease`);
  const scene: Scene = {
    stack,
    network,
    agent,
    hostId,
    api,
    diskId: id,
    image: join(diskFolder(stack, id), 'image.ext4'),
    writing: api.call('POST', `/api/disks/${id}/exec`, { command: WRITE }),
    readLease: async () => ({
      holder: leaseHolder(await redis.get(leaseKey)),
      remainingMs: await redis.pttl(leaseKey),
    }),
  };
  assert.deepStrictEqual((await scene.readLease()).holder, hostId);
  const log = join(diskMount(agent, id), 'contents/log');
  await waitFor('the first lines', async () => (await readFile(log, 'utf8')).length > 100);
  return scene;
}

const dataDirOf = ({ environment }: StackNode): string => environment['AGENT_DATA_DIR'] ?? '';

/** The numbers of the loop devices attached to the image. */
const loopsOn = (image: string): Promise<string[]> =>
  Promise.all(
    loopNamesOn(image).map(async (name) =>
      (await readFile(join('/sys/block', name, 'dev'), 'utf8')).trim(),
    ),
  );

/** The agents that have one of these devices mounted in any mount namespace. */
async function holdersOf({ agents }: Stack, devices: readonly string[]): Promise<StackNode[]> {
  const lines = (await readFile('/proc/self/mountinfo', 'utf8')).split('\n');
  const targets = lines.flatMap((line) => {
    const [, , device = '', , target = ''] = line.split(' ');
    return devices.includes(device) ? [target] : [];
  });
  return agents.filter((agent) =>
    targets.some((target) => target.startsWith(`${runDirOf(agent.environment)}/`)),
  );
}

/** Keeps recording which host has the disk mounted and which host holds its lease. */
class Watch implements AsyncDisposable {
  readonly faults = new Set<string>();
  /** The lease's remaining time when the host was first seen to have detached the disk. */
  leftMsWhenFree: number | undefined;
  readonly #scene: Scene;
  #stopped = false;
  readonly #watching: Promise<void>;

  constructor(scene: Scene) {
    this.#scene = scene;
    this.#watching = this.#watch();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stopped = true;
    await this.#watching;
  }

  async #watch(): Promise<void> {
    while (!this.#stopped) {
      await this.#look();
      await sleep(10);
    }
  }

  async #look(): Promise<void> {
    const { stack, agent, hostId, image, readLease } = this.#scene;
    // The lease first: a host that has the disk after it was seen to have no lease is at fault.
    const { holder, remainingMs } = await readLease();
    const loops = await loopsOn(image);
    const holders = await holdersOf(stack, loops);
    if (loops.length > 1) this.faults.add(`${loops.length} loop devices`);
    if (holders.length > 1) this.faults.add('mounted by two hosts');
    if (holders.includes(agent) && holder !== hostId) this.faults.add('mounted without a lease');
    if (loops.length === 0) this.leftMsWhenFree ??= holder === hostId ? remainingMs : 0;
  }
}

/** Waits until the heir answers for the disk. */
async function waitForHeir({ api, diskId }: Scene): Promise<void> {
  const command = 'sha256sum --check --status sum && echo taken >> log';
  await waitFor(
    'the heir',
    async () => {
      const signal = AbortSignal.timeout(3 * REGION_LIMITS.execTakenMsMax);
      const path = `/api/disks/${diskId}/exec`;
      const reply = await api.call('POST', path, { command }, {}, signal);
      if (reply.status !== 200) return undefined;
      assert.deepStrictEqual((reply.body.data as { exitCode: number }).exitCode, 0);
      return true;
    },
    2 * DISK_LIMITS.diskLeaseTtlMs,
  );
}

/** Asserts that the heir has the disk, that it is intact, and that nobody else writes to it. */
async function checkHeir(t: ExecutionContext, scene: Scene): Promise<void> {
  const { stack, api, diskId, image } = scene;
  t.deepEqual(await holdersOf(stack, await loopsOn(image)), [stack.agents[0]]);
  await sleep(500);
  const { stdout } = await exec(api, diskId, 'cat log');
  const lines = stdout.trimEnd().split('\n');
  t.is(lines.pop(), 'taken');
  t.deepEqual(
    lines,
    lines.map((_, index) => `line ${index + 1}`),
    'nothing is lost in the middle',
  );
}

/** Asserts that the host works again: it gets a new disk. */
async function checkRejoined({ stack, agent, api }: Scene): Promise<void> {
  await waitFor(
    'the host to take part again',
    async () => {
      const { body } = await api.call('POST', '/api/disks', { name: newName() });
      if (!body.success) return false; // Its connection to the queue may take a little longer to recover.
      const { id } = body.data as { id: string };
      await api.call('POST', `/api/disks/${id}/exec`, { command: 'true' });
      const loops = await loopsOn(join(diskFolder(stack, id), 'image.ext4'));
      return (await holdersOf(stack, loops)).includes(agent);
    },
    2 * DISK_LIMITS.diskLeaseTtlMs,
  );
}

async function surviveCut(
  t: ExecutionContext<{ stack: Stack }>,
  network: Network | undefined,
  cut: (network: Network) => Promise<void>,
  mend: (network: Network) => Promise<void>,
): Promise<void> {
  const scene = await setScene(t.context.stack, network);
  await using watch = new Watch(scene);
  const cutAt = performance.now();
  await cut(scene.network);
  const reply = await scene.writing;
  t.deepEqual([reply.status, reply.body.code], [500, 'outcome_unknown']);
  t.true(performance.now() - cutAt < DISK_LIMITS.diskLeaseTtlMs);
  await waitForHeir(scene);
  await checkHeir(t, scene);
  await mend(scene.network);
  await checkRejoined(scene);
  await checkHeir(t, scene);
  t.deepEqual([...watch.faults], []);
}

test('a host whose link goes down releases its disk before another host attaches it', async (t) => {
  await surviveCut(
    t,
    t.context.networks[0],
    (network) => network.setLink('down'),
    (network) => network.setLink('up'),
  );
});

test('an agent is killed: its disk is unmounted intact long before another host attaches it', async (t) => {
  const scene = await setScene(t.context.stack, t.context.networks[1]);
  await using watch = new Watch(scene);
  await scene.agent.daemon.stop('SIGKILL');
  const reply = await scene.writing;
  t.deepEqual([reply.status, reply.body.code], [500, 'outcome_unknown']);
  await waitFor('the guard', async () => watch.leftMsWhenFree !== undefined);
  t.true((watch.leftMsWhenFree ?? 0) > DISK_LIMITS.diskLeaseMarginMs / 2);
  const aside = await mkdtemp(join(tmpdir(), 'berth-test-'));
  try {
    const copy = join(aside, 'image.ext4');
    await run('cp', ['--sparse=always', scene.image, copy]);
    await t.notThrowsAsync(run('e2fsck', ['-fn', copy]));
  } finally {
    await rm(aside, { recursive: true, force: true });
  }
  await waitForHeir(scene);
  await checkHeir(t, scene);
  t.deepEqual([...watch.faults], []);
  await scene.agent.start();
  await checkRejoined(scene);
  await checkHeir(t, scene);
});

fullTest('a host that Redis cannot be reached from gives its disk up in time', async (t) => {
  await surviveCut(
    t,
    t.context.networks[2],
    (network) => network.cutOff(network.hostAddresses[1]),
    (network) => network.rejoin(network.hostAddresses[1]),
  );
});

fullTest('a host that no control node can be reached from gives its disk up', async (t) => {
  await surviveCut(
    t,
    t.context.networks[3],
    (network) => network.cutOff(network.hostAddresses[0]),
    (network) => network.rejoin(network.hostAddresses[0]),
  );
});
