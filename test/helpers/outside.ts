import { randomBytes } from 'node:crypto';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { runWithin } from '../../agent/network/slots/nft.ts';
import { run } from '../../agent/system/spawn.ts';
import { claimNetwork } from './claim-network.ts';
import type { Environment } from './daemon.ts';
import { waitFor } from './wait.ts';

const fixture = (name: string): string => new URL(`../fixtures/${name}`, import.meta.url).pathname;

/** How a server of the outside behaves; see outside-server.py. */
export type OutsideServer = 'tcp-echo' | 'udp-echo' | 'http' | 'transfer';

/**
 * The rest of the world, as sandboxes of a test see it: a network namespace behind a link of the
 * host's, with addresses that are for documentation only, a resolver with a zone of its own, and
 * servers. Nothing of it is on the internet. Dispose of it.
 */
export class Outside implements AsyncDisposable {
  readonly namespace: string;
  /** The host's end of the link. */
  readonly #link: string;
  /** A /28 of TEST-NET-2 or TEST-NET-3 (RFC 5737), which no other test has at the time. */
  #base = '';
  #first = 0;
  readonly #processes: ChildProcess[] = [];
  readonly #names = new Map<string, string>();
  #dns: ChildProcess | undefined;
  readonly #aliases = new Map<string, string>();
  readonly #asked: string[] = [];

  private constructor() {
    const id = randomBytes(4).toString('hex');
    this.namespace = `berth-test-out-${id}`;
    this.#link = `bto-${id}`;
  }

  /** @param names domain names with the index of their address, besides `outside.test` (0) */
  static async open(names: Readonly<Record<string, number>> = {}): Promise<Outside> {
    const outside = new Outside();
    try {
      await outside.#connect();
      outside.#names.set('outside.test', outside.address(0));
      for (const [name, index] of Object.entries(names)) {
        outside.#names.set(name, outside.address(index));
      }
      await outside.#startResolver();
    } catch (error) {
      await outside[Symbol.asyncDispose]();
      throw error;
    }
    return outside;
  }

  /** Any of its 12 addresses, from 0; servers listen on all of them, but for UDP. */
  address(index: number): string {
    if (index < 0 || index > 11) throw new RangeError(`there is no address ${index}`);
    return `${this.#base}.${this.#first + 1 + index}`;
  }

  /** The address from which it sees what the host sends on. */
  get hostAddress(): string {
    return `${this.#base}.${this.#first + 14}`;
  }

  /** Its resolver, for SANDBOX_DNS. */
  get resolver(): string {
    return `${this.#base}.${this.#first + 13}`;
  }

  /** The questions that its resolver was asked so far, such as `query[A] outside.test`. */
  get asked(): readonly string[] {
    return this.#asked;
  }

  /** Agents with these settings have this as their sandboxes' outside. */
  get settings(): Environment {
    return { SANDBOX_DNS: this.resolver };
  }

  /** Changes a name's address, or adds a name. Sandboxes' resolvers may remember the former one. */
  async setName(name: string, address: string): Promise<void> {
    this.#names.set(name, address);
    await this.#startResolver();
  }

  /** Has a name stand for another one. */
  async setAlias(name: string, target: string): Promise<void> {
    this.#aliases.set(name, target);
    await this.#startResolver();
  }

  /** Gives it one more address, of any network, which the host then has a route to. */
  async addAddress(address: string): Promise<void> {
    await run('ip', ['-n', this.namespace, 'address', 'add', `${address}/32`, 'dev', 'eth0']);
    await run('ip', ['route', 'add', address, 'dev', this.#link]); // The route goes with the link.
  }

  /** Starts a server on a port of all addresses, and of IPv6. @returns when it listens */
  async serve(kind: OutsideServer, port: number): Promise<void> {
    this.#processes.push(await serveWithin(this.namespace, kind, port));
  }

  /** Starts a program in the namespace, which prints a line when it is ready. */
  async start(command: readonly string[], environment: Environment = {}): Promise<ChildProcess> {
    const child = await startWithin(this.namespace, command, environment);
    this.#processes.push(child);
    return child;
  }

  /** Runs a program in the namespace to its end. @returns what it printed */
  run(program: string, ...args: string[]): Promise<string> {
    return runWithin(this.namespace, [program, ...args]);
  }

  /** Runs a program on the host. @returns what it printed */
  host(program: string, ...args: string[]): Promise<string> {
    return run(program, args);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const child of [...this.#processes, ...(this.#dns === undefined ? [] : [this.#dns])]) {
      await end(child);
    }
    await run('ip', ['link', 'delete', this.#link]).catch(() => undefined);
    await run('ip', ['netns', 'delete', this.namespace]).catch(() => undefined);
  }

  async #connect(): Promise<void> {
    await run('ip', ['netns', 'add', this.namespace]);
    const pair = ['type', 'veth', 'peer', 'name', 'eth0', 'netns', this.namespace];
    await run('ip', ['link', 'add', this.#link, ...pair]);
    await run('ip', ['link', 'set', this.#link, 'up']);
    await this.#claimAddresses();
    const addresses = [...Array.from({ length: 12 }, (_, index) => this.address(index))];
    const inside = [
      'link set lo up',
      ...[...addresses, this.resolver].map((address) => `address add ${address}/28 dev eth0`),
      'link set eth0 up',
    ];
    await run('ip', ['-n', this.namespace, '-batch', '-'], { input: `${inside.join('\n')}\n` });
  }

  async #claimAddresses(): Promise<void> {
    ({ base: this.#base, first: this.#first } = await claimNetwork(this.#link));
    const address = [`${this.hostAddress}/28`, 'dev', this.#link, 'noprefixroute'];
    await run('ip', ['address', 'add', ...address]);
  }

  async #startResolver(): Promise<void> {
    if (this.#dns !== undefined) await end(this.#dns);
    const records = [...this.#names].map(([name, address]) => `--host-record=${name},${address},5`);
    const args = [
      `--net=/run/netns/${this.namespace}`,
      ...['dnsmasq', '--conf-file=/dev/null', '--keep-in-foreground', '--pid-file'],
      ...['--no-resolv', '--no-hosts', '--user=root', '--bind-interfaces'],
      ...[`--listen-address=${this.resolver}`, '--local=/test/', '--log-facility=-', ...records],
      ...[...this.#aliases].map(([name, target]) => `--cname=${name},${target}`),
      '--log-queries',
    ];
    const dns = spawn('nsenter', args, { stdio: ['ignore', 'ignore', 'pipe'] });
    createInterface({ input: dns.stderr }).on('line', (line) => {
      const [, type, name] = /: (query\S*) (\S+) from /u.exec(line) ?? [];
      if (type !== undefined && name !== undefined) this.#asked.push(`${type} ${name}`);
    });
    this.#dns = dns;
    await waitFor('the resolver to listen', async () =>
      (await this.run('ss', '-lnu')).includes(`${this.resolver}:53`),
    );
  }
}

async function startWithin(
  namespace: string,
  command: readonly string[],
  environment: Environment = {},
): Promise<ChildProcess> {
  const within = [`--net=/run/netns/${namespace}`, ...command];
  const child = spawn('nsenter', within, {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: { ...process.env, ...environment },
  });
  const exited = once(child, 'exit').then(() => {
    throw new Error(`${command.join(' ')} ended`);
  });
  exited.catch(() => undefined);
  await Promise.race([once(child.stdout, 'data'), exited]);
  return child;
}

/** Starts a server in any network namespace. @returns when it listens; the caller ends it */
export const serveWithin = (
  namespace: string,
  kind: OutsideServer,
  port: number,
): Promise<ChildProcess> =>
  startWithin(namespace, ['python3', fixture('outside-server.py'), kind, String(port)]);

async function end(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const exited = once(child, 'exit');
  child.kill('SIGKILL');
  await exited;
}
