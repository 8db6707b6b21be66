import { execFile } from 'node:child_process';
import { randomBytes, randomInt } from 'node:crypto';
import { promisify } from 'node:util';

const run = promisify(execFile);

/**
 * A network namespace with a link of its own to the host's, for processes that are to be cut off.
 */
export class Network {
  readonly #name: string;
  /** The host's end of the link; named here, the other end `peer` is seen in the namespace only. */
  readonly #link: string;
  /** Address of the namespace, and two of the host's that can be cut off one by one. */
  readonly address: string;
  readonly hostAddresses: readonly [string, string];

  private constructor() {
    const id = randomBytes(4).toString('hex');
    this.#name = `berth-test-${id}`;
    this.#link = `bt-${id}`;
    const subnet = `10.203.${randomInt(256)}`;
    const first = 8 * randomInt(32);
    this.address = `${subnet}.${first + 1}`;
    this.hostAddresses = [`${subnet}.${first + 2}`, `${subnet}.${first + 3}`];
  }

  static async create(): Promise<Network> {
    const network = new Network();
    try {
      await network.#setUp();
    } catch (error) {
      await network.remove();
      throw error;
    }
    return network;
  }

  /** The command line prefix that runs a program in the namespace. */
  get within(): string[] {
    return ['nsenter', `--net=/run/netns/${this.#name}`];
  }

  async setLink(state: 'up' | 'down'): Promise<void> {
    await run('ip', ['link', 'set', this.#link, state]);
  }

  /** Silently drops everything that the namespace sends to this address. */
  async cutOff(address: string): Promise<void> {
    await this.#ip('route', 'add', 'blackhole', `${address}/32`);
  }

  async rejoin(address: string): Promise<void> {
    await this.#ip('route', 'del', 'blackhole', `${address}/32`);
  }

  /** Idempotent. */
  async remove(): Promise<void> {
    await run('ip', ['link', 'del', this.#link]).catch(() => undefined);
    await run('ip', ['netns', 'del', this.#name]).catch(() => undefined);
  }

  async #setUp(): Promise<void> {
    await run('ip', ['netns', 'add', this.#name]);
    const pair = ['type', 'veth', 'peer', 'name', 'peer', 'netns', this.#name];
    await run('ip', ['link', 'add', this.#link, ...pair]);
    for (const address of this.hostAddresses) {
      await run('ip', ['addr', 'add', `${address}/29`, 'dev', this.#link]);
    }
    await this.setLink('up');
    await this.#ip('link', 'set', 'lo', 'up');
    await this.#ip('addr', 'add', `${this.address}/29`, 'dev', 'peer');
    await this.#ip('link', 'set', 'peer', 'up');
  }

  async #ip(...args: string[]): Promise<void> {
    await run('ip', ['-n', this.#name, ...args]);
  }
}
