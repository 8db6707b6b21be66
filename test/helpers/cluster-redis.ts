import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ClusterNode } from './cluster-node.ts';
import { Daemon, type Environment } from './daemon.ts';
import type { NetworkMachine } from './machine-network.ts';
import { waitFor } from './wait.ts';

const NAME = 'berth';
const PORT = 6379;
const SENTINEL_PORT = 26_379;
/** Servers, and Sentinels, of a Redis that fails over. */
const GROUP = 3;

/** The cluster that a Redis belongs to. */
export interface RedisPlace {
  /** The directory of everything that the cluster keeps. */
  readonly directory: string;
  readonly checkout: string;
  /** Certificates (PEM) of its authority. */
  readonly ca: string;
  addMachine(name: string): Promise<NetworkMachine>;
  issue(machine: NetworkMachine): Promise<{ cert: string; key: string }>;
}

/**
 * The Redis of a cluster: one server, or three with a Sentinel beside each, as docs/operations.md
 * has them.
 */
export class ClusterRedis {
  readonly servers: ClusterNode[] = [];
  readonly sentinels: Daemon[] = [];
  readonly #place: RedisPlace;
  #password = '';

  private constructor(place: RedisPlace) {
    this.#place = place;
  }

  static async start(place: RedisPlace, failsOver = false): Promise<ClusterRedis> {
    const redis = new ClusterRedis(place);
    try {
      await redis.#addServer(failsOver ? 'redis-1' : 'redis');
      if (failsOver) await redis.#addGroup();
    } catch (error) {
      await redis.stop();
      throw error;
    }
    return redis;
  }

  /** For the first control node, from which all other nodes have it. */
  get settings(): Environment {
    const addresses = this.servers.map(({ machine }) => machine.address);
    if (this.sentinels.length === 0) {
      return { REDIS_URL: `rediss://:${this.#password}@${addresses[0]}:${PORT}` };
    }
    return {
      REDIS_SENTINELS: addresses.map((address) => `${address}:${SENTINEL_PORT}`).join(','),
      ...{ REDIS_SENTINEL_NAME: NAME, REDIS_PASSWORD: this.#password },
    };
  }

  /** The server that a Sentinel takes for the primary. @throws Error when none of them tells */
  async primary(): Promise<ClusterNode> {
    const question = ['sentinel', 'get-master-addr-by-name', NAME];
    const asked = this.servers.map(async ({ machine }) => {
      const [address] = (await this.#ask(machine, SENTINEL_PORT, question)).split('\n');
      const found = this.servers.find((server) => server.machine.address === address);
      if (found === undefined) throw new Error(`no server has the address ${address}`);
      return found;
    });
    return Promise.any(asked);
  }

  async stop(): Promise<void> {
    await Promise.all(this.sentinels.map((sentinel) => sentinel.stop('SIGKILL')));
    await Promise.all(this.servers.map((server) => server.stop()));
  }

  /** Asks a server or a Sentinel itself. @returns what it says, nothing when it does not answer */
  async #ask(machine: NetworkMachine, port: number, words: readonly string[]): Promise<string> {
    const login = port === PORT && this.#password !== '' ? ['--pass', this.#password] : [];
    const where = ['--tls', '--cacert', this.#place.ca, '-h', machine.address, '-p', String(port)];
    const command = ['timeout', '2', 'redis-cli', '--no-auth-warning', ...where, ...login];
    return machine.run([...command, ...words]).catch(() => '');
  }

  /** Lines that have a server or a Sentinel speak TLS alone. */
  async #encrypted(machine: NetworkMachine, port: number): Promise<string[]> {
    const { cert, key } = await this.#place.issue(machine);
    const files = [`tls-cert-file ${cert}`, `tls-key-file ${key}`];
    return [
      ...['port 0', `tls-port ${port}`, 'tls-auth-clients no', 'tls-replication yes'],
      ...[...files, `tls-ca-cert-file ${this.#place.ca}`],
    ];
  }

  /** @param lines of redis.conf besides those of a single server */
  async #addServer(name: string, lines: readonly string[] = []): Promise<ClusterNode> {
    const { directory, checkout } = this.#place;
    const machine = await this.#place.addMachine(name);
    const node = new ClusterNode(machine, 'redis', directory, async () =>
      /PONG|NOAUTH|LOADING/u.test(await this.#ask(machine, PORT, ['ping'])),
    );
    this.servers.push(node);
    await node.script(checkout, 'install', [
      ...['redis', '--address', machine.address, '--root', node.root],
    ]);
    const file = join(node.root, 'etc/berth/redis.conf');
    const written = await readFile(file, 'utf8');
    const [, made = ''] = /^requirepass (\S+)$/mu.exec(written) ?? [];
    this.#password ||= made;
    const data = join(directory, `${name}-data`);
    await mkdir(data);
    const changed = written
      .replace(/^port 6379$/mu, (await this.#encrypted(machine, PORT)).join('\n'))
      .replace(/^requirepass .*$/mu, `requirepass ${this.#password}`)
      .replace(/^dir .*$/mu, `dir ${data}`);
    await writeFile(file, [changed, ...lines, ''].join('\n'));
    await node.start();
    return node;
  }

  /** Makes the first server one of three. */
  async #addGroup(): Promise<void> {
    const [first] = this.servers;
    if (first === undefined) throw new Error('there is no first server');
    const { address } = first.machine;
    const member = [
      ...[`masterauth ${this.#password}`, 'min-replicas-to-write 1', 'min-replicas-max-lag 10'],
      'repl-diskless-sync-delay 0',
    ];
    const file = join(first.root, 'etc/berth/redis.conf');
    await first.stop();
    await writeFile(file, [await readFile(file, 'utf8'), ...member, ''].join('\n'));
    await first.start();
    for (let number = 2; number <= GROUP; number += 1) {
      await this.#addServer(`redis-${number}`, [...member, `replicaof ${address} ${PORT}`]);
    }
    await waitFor('two replicas', async () => {
      const said = await this.#ask(first.machine, PORT, ['info', 'replication']);
      return (said.match(/state=online/gu) ?? []).length === GROUP - 1;
    });
    for (const { machine } of this.servers) await this.#addSentinel(machine, address);
    await waitFor('the Sentinels to know each other', async () => {
      const questions = this.servers.map(({ machine }) =>
        this.#ask(machine, SENTINEL_PORT, ['info', 'sentinel']),
      );
      const answers = await Promise.all(questions);
      return answers.every((said) => /status=ok.*slaves=2,sentinels=3/u.test(said));
    });
  }

  async #addSentinel(machine: NetworkMachine, primary: string): Promise<void> {
    const { directory } = this.#place;
    const name = `${machine.name}-sentinel`;
    const data = join(directory, `${name}-data`);
    await mkdir(data);
    const file = join(directory, `${name}.conf`);
    await writeFile(
      file,
      [
        ...[`bind ${machine.address}`, 'protected-mode no', `dir ${data}`],
        ...(await this.#encrypted(machine, SENTINEL_PORT)),
        `sentinel monitor ${NAME} ${primary} ${PORT} 2`,
        `sentinel auth-pass ${NAME} ${this.#password}`,
        `sentinel down-after-milliseconds ${NAME} 5000`,
        `sentinel failover-timeout ${NAME} 30000`,
        `sentinel parallel-syncs ${NAME} 1`,
        '',
      ].join('\n'),
    );
    const command = [...machine.within, 'redis-server', file, '--sentinel'];
    const daemon = new Daemon(name, command, {}, join(directory, `${name}.log`));
    this.sentinels.push(daemon);
    daemon.start();
  }
}
