import { writeFile } from 'node:fs/promises';
import type { Redis } from 'ioredis';
import { connectRedis } from '../../shared/directory/redis.ts';
import { readSlotRanges, slotOf } from '../../shared/directory/cluster-connectors.ts';
import type { ClusteredRedis } from '../../shared/tls/redis-tls.ts';
import { Daemon, type Environment } from './daemon.ts';
import { freePorts } from './ports.ts';
import { silence } from './silence.ts';
import { temporaryDirectory } from './temporary.ts';
import { waitFor } from './wait.ts';

const HOST = '127.0.0.1';
const SLOTS = 16_384;
const PRIMARIES = 3;
/** After how long the nodes take a silent one for dead. */
const NODE_TIMEOUT_MS = 1_000;

/** A password, and a certificate of all nodes, which they also ask their clients for. */
interface Access {
  readonly password: string;
  readonly tls: { readonly caPath: string; readonly certPath: string; readonly keyPath: string };
}

interface Node {
  readonly daemon: Daemon;
  readonly port: number;
  readonly busPort: number;
  readonly target: Parameters<typeof connectRedis>[0];
}

/** Lines of redis.conf for a port that anybody may use, or one for those who have access. */
function portLines(port: number, access: Access | undefined): string[] {
  if (access === undefined) return [`port ${port}`, 'protected-mode no'];
  const { password, tls } = access;
  return [
    ...['port 0', `tls-port ${port}`, 'tls-cluster yes', 'tls-replication yes'],
    ...[`tls-ca-cert-file ${tls.caPath}`, `tls-cert-file ${tls.certPath}`],
    ...[`tls-key-file ${tls.keyPath}`, `requirepass ${password}`, `masterauth ${password}`],
  ];
}

const targetAt = (port: number, access: Access | undefined): Node['target'] =>
  access === undefined
    ? `redis://${HOST}:${port}`
    : { url: `rediss://:${access.password}@${HOST}:${port}`, tls: access.tls };

/** Asks one node itself. */
async function ask<T>({ target }: Node, question: (redis: Redis) => Promise<T>): Promise<T> {
  const redis = connectRedis(target, () => undefined);
  try {
    await redis.connect();
    return await question(redis);
  } finally {
    redis.disconnect();
  }
}

const idOf = (node: Node): Promise<string> => ask(node, (redis) => redis.cluster('MYID'));

/** A Redis Cluster of three primaries, each with a replica. */
export class RedisCluster implements AsyncDisposable {
  readonly #nodes: readonly Node[];
  readonly #access: Access | undefined;
  readonly #stack: AsyncDisposableStack;
  readonly #silent = new Set<Node>();

  private constructor(
    nodes: readonly Node[],
    access: Access | undefined,
    stack: AsyncDisposableStack,
  ) {
    this.#nodes = nodes;
    this.#access = access;
    this.#stack = stack;
  }

  /** @param access undefined: anybody has it, without TLS */
  static async start(access?: Access): Promise<RedisCluster> {
    await using undo = new AsyncDisposableStack();
    const { path } = undo.use(await temporaryDirectory());
    const ports = await freePorts(4 * PRIMARIES);
    const launch = async (number: number): Promise<Node> => {
      const [port = 0, busPort = 0] = ports.slice(2 * number);
      const lines = [
        ...portLines(port, access),
        ...[`cluster-port ${busPort}`, `bind ${HOST}`, `dir ${path}`],
        ...['cluster-enabled yes', `cluster-config-file nodes-${port}.conf`],
        ...[`cluster-node-timeout ${NODE_TIMEOUT_MS}`, 'cluster-require-full-coverage no'],
        ...['appendonly yes', `appenddirname aof-${port}`, 'appendfsync always', 'save ""'],
        ...[`dbfilename ${port}.rdb`, 'repl-diskless-sync-delay 0'],
      ];
      await writeFile(`${path}/${port}.conf`, `${lines.join('\n')}\n`);
      const command = ['redis-server', `${path}/${port}.conf`];
      const daemon = new Daemon(`redis-${port}`, command, {}, `${path}/${port}.log`);
      daemon.start();
      undo.defer(async () => {
        await daemon.stop('SIGKILL');
      });
      return { daemon, port, busPort, target: targetAt(port, access) };
    };
    const nodes = await Promise.all(Array.from({ length: 2 * PRIMARIES }, (_, i) => launch(i)));
    await joinNodes(nodes);
    return new RedisCluster(nodes, access, undo.move());
  }

  /** For control and agents. The first of the nodes that they are told of is not there. */
  async settings(): Promise<Environment> {
    const [nobody = 0] = await freePorts(1);
    const ports = [nobody, ...this.#nodes.slice(0, 2).map(({ port }) => port)];
    return { REDIS_CLUSTER_NODES: ports.map((port) => `${HOST}:${port}`).join(',') };
  }

  get target(): ClusteredRedis {
    return {
      nodes: this.#nodes.map(({ port }) => ({ host: HOST, port })),
      ...{ username: undefined, password: this.#access?.password, tls: this.#access?.tls },
    };
  }

  get nodes(): readonly Node[] {
    return this.#nodes;
  }

  /** Asks one node itself. */
  ask<T>(node: Node, question: (redis: Redis) => Promise<T>): Promise<T> {
    return ask(node, question);
  }

  /** The primary of a key's slot, as the first node that answers says. */
  async primary(key: string): Promise<Node> {
    const slot = slotOf(key);
    const range = (await this.#ranges()).find(({ first, last }) => first <= slot && slot <= last);
    return this.#find(range?.primary.port);
  }

  async anotherPrimary(than: Node): Promise<Node> {
    const range = (await this.#ranges()).find(({ primary: { port } }) => port !== than.port);
    return this.#find(range?.primary.port);
  }

  async #ranges(): ReturnType<typeof readSlotRanges> {
    for (const node of this.#nodes) {
      if (this.#silent.has(node)) continue;
      const ranges = await ask(node, readSlotRanges).catch(() => undefined);
      if (ranges !== undefined) return ranges;
    }
    throw new Error('no node answers');
  }

  #find(port: number | undefined): Node {
    const found = this.#nodes.find((node) => node.port === port);
    if (found === undefined) throw new Error('nobody has the slot');
    return found;
  }

  /** The replicas that a primary has now. */
  async replicas(primary: Node): Promise<readonly Node[]> {
    const lines = await ask(primary, (redis) => redis.info('replication'));
    const online = lines.matchAll(/port=(\d+),state=online/gu);
    const ports = new Set([...online].map(([, port]) => Number(port)));
    return this.#nodes.filter(({ port }) => ports.has(port));
  }

  /** Resolves once another node has a key's slot, and says so itself. */
  async successor(former: Node, key: string): Promise<Node> {
    return waitFor('another primary', async () => {
      const node = await this.primary(key);
      if (node === former) return false;
      const [role] = (await ask(node, (redis) => redis.role())) as [string];
      return role === 'master' && node;
    });
  }

  /** Has a node answer nobody until the result is disposed. */
  silence(node: Node): AsyncDisposable {
    const stopped = silence(node.daemon.pid);
    this.#silent.add(node);
    return {
      [Symbol.asyncDispose]: async () => {
        await stopped[Symbol.asyncDispose]();
        this.#silent.delete(node);
      },
    };
  }

  /** Starts a node again that was killed. Resolves once each primary has a replica. */
  async restart(node: Node): Promise<void> {
    await node.daemon.stop('SIGKILL');
    node.daemon.start();
    await this.recovered();
  }

  /** Resolves once each primary has a replica. */
  async recovered(): Promise<void> {
    await waitFor('each primary to have a replica', async () => {
      const ports = new Set((await this.#ranges()).map(({ primary: { port } }) => port));
      const replicas = await Promise.all(
        [...ports].map((port) => this.replicas(this.#find(port)).catch(() => [])),
      );
      return replicas.every(({ length }) => length > 0);
    });
  }

  /** Moves the slot of a key, with all that is in it, to another primary. */
  async moveSlot(key: string, from: Node, to: Node): Promise<void> {
    const slot = slotOf(key);
    const [fromId, toId] = [await idOf(from), await idOf(to)];
    await ask(to, (redis) => redis.cluster('SETSLOT', slot, 'IMPORTING', fromId));
    await ask(from, async (redis) => {
      await redis.cluster('SETSLOT', slot, 'MIGRATING', toId);
      for (;;) {
        const keys = await redis.cluster('GETKEYSINSLOT', slot, 10);
        if (keys.length === 0) break;
        await redis.call('MIGRATE', HOST, to.port, '', 0, 5_000, 'KEYS', ...keys);
      }
    });
    for (const node of [to, from]) {
      await ask(node, (redis) => redis.cluster('SETSLOT', slot, 'NODE', toId));
    }
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#stack.disposeAsync();
  }
}

/** Has the first half of the nodes share the slots, and the others follow them. */
async function joinNodes(nodes: readonly Node[]): Promise<void> {
  const [first] = nodes;
  if (first === undefined) return;
  for (const [number, node] of nodes.entries()) {
    await waitFor('a node', () => ask(node, (redis) => redis.ping()).catch(() => false));
    await ask(node, async (redis) => {
      await redis.cluster('SET-CONFIG-EPOCH', number + 1);
      if (node !== first) await redis.call('CLUSTER', 'MEET', HOST, first.port, first.busPort);
      if (number >= PRIMARIES) return;
      const [from, to] = [number, number + 1].map((part) => Math.floor((part * SLOTS) / PRIMARIES));
      await redis.cluster('ADDSLOTSRANGE', from ?? 0, (to ?? 0) - 1);
    });
  }
  for (const [number, node] of nodes.entries()) {
    const followed = nodes[number - PRIMARIES];
    if (followed === undefined) continue;
    const id = await idOf(followed);
    await waitFor('the node to know its primary', () =>
      ask(node, (redis) => redis.cluster('REPLICATE', id)).catch(() => false),
    );
  }
  await waitFor('the nodes to agree', async () => {
    const states = await Promise.all(
      nodes.map((node) =>
        ask(node, async (redis) => {
          const slots = (await redis.cluster('SLOTS')) as unknown[][];
          const isWhole = slots.length === PRIMARIES && slots.every((range) => range.length === 4);
          return isWhole && (await redis.cluster('INFO')).includes('cluster_state:ok');
        }),
      ),
    );
    return states.every(Boolean);
  });
  for (const node of nodes.slice(0, PRIMARIES)) {
    await waitFor('a replica', async () =>
      (await ask(node, (redis) => redis.info('replication'))).includes('state=online'),
    );
  }
}
