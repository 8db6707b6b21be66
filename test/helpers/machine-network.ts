import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { promisify } from 'node:util';
import { run } from '../../agent/system/spawn.ts';
import { claimNetwork, NETWORK_ADDRESSES } from './claim-network.ts';
import type { Environment } from './daemon.ts';

/** A machine of a network: a network namespace with an address of its own, and a cable to pull. */
export class NetworkMachine {
  readonly name: string;
  readonly address: string;
  readonly namespace: string;
  /** A file of a mount namespace: that of programs that start here, unless it is the test's own. */
  mounts: string | undefined;
  readonly #cable: string;

  constructor(name: string, address: string, namespace: string, cable: string) {
    this.name = name;
    this.address = address;
    this.namespace = namespace;
    this.#cable = cable;
  }

  /** Command line prefix that runs a program here. */
  get within(): readonly string[] {
    const mounts = this.mounts === undefined ? [] : [`--mount=${this.mounts}`];
    return ['nsenter', `--net=/run/netns/${this.namespace}`, ...mounts];
  }

  /** The ids of the processes that run here. */
  async processes(): Promise<number[]> {
    const listed = await run('ip', ['netns', 'pids', this.namespace]);
    return listed.split('\n').filter(Boolean).map(Number);
  }

  /**
   * Runs a program here to its end.
   * @returns what it printed.
   * @throws Error with what it complained of
   */
  async run(command: readonly string[], environment: Environment = {}): Promise<string> {
    const [program = '', ...args] = [...this.within, ...command];
    const env = { PATH: process.env['PATH'] ?? '', ...environment };
    return (await promisify(execFile)(program, args, { env })).stdout;
  }

  /** Pulls the cable: what is sent to it and from it is lost without a word. */
  async cutOff(): Promise<void> {
    await run('ip', ['link', 'set', this.#cable, 'down']);
  }

  async reconnect(): Promise<void> {
    await run('ip', ['link', 'set', this.#cable, 'up']);
  }
}

/**
 * Machines that reach each other by a bridge, and that the test reaches: each is a network
 * namespace. Nothing of it leads to the internet. Dispose of it.
 */
export class MachineNetwork implements AsyncDisposable {
  readonly machines: NetworkMachine[] = [];
  readonly #id = randomBytes(3).toString('hex');
  #base = '';
  #first = 0;

  static async open(): Promise<MachineNetwork> {
    const network = new MachineNetwork();
    try {
      await run('ip', ['link', 'add', network.#bridge, 'type', 'bridge']);
      await run('ip', ['link', 'set', network.#bridge, 'up']);
      await network.#claimAddresses();
    } catch (error) {
      await network[Symbol.asyncDispose]();
      throw error;
    }
    return network;
  }

  get #bridge(): string {
    return `btb-${this.#id}`;
  }

  /** The test's own address, as the machines see it. */
  get ownAddress(): string {
    return this.#address(NETWORK_ADDRESSES - 2);
  }

  #address(index: number): string {
    return `${this.#base}.${this.#first + index}`;
  }

  async addMachine(name: string): Promise<NetworkMachine> {
    const index = this.machines.length + 1;
    if (index >= NETWORK_ADDRESSES - 2) throw new RangeError('the network is full');
    const namespace = `berth-test-${this.#id}-${name}`;
    const cable = `btc-${this.#id}-${index}`;
    const machine = new NetworkMachine(name, this.#address(index), namespace, cable);
    await run('ip', ['netns', 'add', namespace]);
    this.machines.push(machine); // From here on it is removed with the network.
    const pair = ['type', 'veth', 'peer', 'name', 'eth0', 'netns', namespace];
    await run('ip', ['link', 'add', cable, ...pair]);
    await run('ip', ['link', 'set', cable, 'master', this.#bridge, 'up']);
    const inside = [
      'link set lo up',
      `address add ${machine.address}/28 dev eth0`,
      'link set eth0 up',
    ];
    await run('ip', ['-n', namespace, '-batch', '-'], { input: `${inside.join('\n')}\n` });
    return machine;
  }

  /** Processes that still run on the machines. */
  async findLeaks(): Promise<string[]> {
    const found: string[] = [];
    for (const machine of this.machines) {
      const pids = await machine.processes();
      found.push(...pids.map((pid) => `process ${pid} in ${machine.namespace}`));
    }
    return found;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const { namespace } of this.machines) {
      await run('ip', ['netns', 'delete', namespace]).catch(() => undefined);
    }
    await run('ip', ['link', 'delete', this.#bridge]).catch(() => undefined);
  }

  async #claimAddresses(): Promise<void> {
    ({ base: this.#base, first: this.#first } = await claimNetwork(this.#bridge));
    const address = [`${this.ownAddress}/28`, 'dev', this.#bridge, 'noprefixroute'];
    await run('ip', ['address', 'add', ...address]);
  }
}
