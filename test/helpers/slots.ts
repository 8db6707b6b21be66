import { randomBytes } from 'node:crypto';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { pino } from 'pino';
import { SlotPool } from '../../agent/network/slots/slot-pool.ts';
import {
  removeSlot,
  slotsWithNamespace,
  type SlotKind,
  type SlotNamespaces,
  slotNamespaces,
} from '../../agent/network/slots/slot-namespace.ts';
import { planSlot, type SlotPlan } from '../../agent/network/slots/slot.ts';
import { run } from '../../agent/system/spawn.ts';
import { newHostId } from '../../shared/ids.ts';

const log = pino({ level: 'silent' });

const CLOSED: SlotKind = { guestLink: 'tap', routerOf: undefined };

interface PoolSettings {
  readonly slotsMax?: number;
  readonly readyMax?: number;
  readonly leased?: readonly number[];
  /** Without one, its slots reach nothing. */
  readonly kind?: SlotKind;
  /** How they are made, where it is not by their kind alone. */
  readonly namespaces?: SlotNamespaces;
}

/** A host for the test. Disposing it removes its slots. */
export class SlotHost implements AsyncDisposable {
  readonly hostId = newHostId();
  readonly #pools: SlotPool[] = [];

  async openPool({
    slotsMax = 8,
    readyMax = 2,
    leased = [],
    kind = CLOSED,
    namespaces = slotNamespaces(kind),
  }: PoolSettings = {}): Promise<SlotPool> {
    const pool = await SlotPool.open({
      ...{ hostId: this.hostId, slotsMax, readyMax, leased, log },
      namespaces,
    });
    this.#pools.push(pool);
    return pool;
  }

  /** The slots that have anything left on this computer. */
  present(): Promise<number[]> {
    return slotsWithNamespace(this.hostId);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#pools.map((pool) => pool.close()));
    for (const index of await this.present())
      await removeSlot(planSlot(this.hostId, index), CLOSED);
  }
}

/** Output of a program that runs in a slot. */
export const withinSlot = (slot: { namespace: string }, ...command: string[]): Promise<string> =>
  run('nsenter', [`--net=/run/netns/${slot.namespace}`, ...command]);

const fixture = (name: string): string => new URL(`../fixtures/${name}`, import.meta.url).pathname;

/** The result of connecting to each address from within a namespace. */
export async function probe(from: { namespace: string }, ...targets: string[]): Promise<string[]> {
  const output = await withinSlot(from, 'python3', fixture('tcp-probe.py'), ...targets);
  return output.trim().split('\n');
}

/** Stands in for a guest: a namespace with the guest's addresses on the slot's tap. */
export class TestPeer implements AsyncDisposable {
  readonly namespace = `berth-test-${randomBytes(4).toString('hex')}`;
  readonly #servers: ChildProcess[] = [];
  #unplug: (() => Promise<void>) | undefined;

  static async on(slot: SlotPlan): Promise<TestPeer> {
    const peer = new TestPeer();
    try {
      await peer.#setUp(slot);
    } catch (error) {
      await peer[Symbol.asyncDispose]();
      throw error;
    }
    return peer;
  }

  async #setUp(slot: SlotPlan): Promise<void> {
    await run('ip', ['netns', 'add', this.namespace]);
    const links = [
      'tuntap add dev eth0 mode tap',
      `link set eth0 address ${slot.guestMac}`,
      `address add ${slot.guestAddress}/${slot.prefixBits} dev eth0`,
      'link set lo up',
      'link set eth0 up',
    ];
    await run('ip', ['-n', this.namespace, '-batch', '-'], { input: `${links.join('\n')}\n` });
    const ends = [`${this.namespace}:eth0`, `${slot.namespace}:${slot.tap}`];
    const cable = spawn('python3', [fixture('tap-cable.py'), ...ends], {
      stdio: ['pipe', 'pipe', 'inherit'],
    });
    const exited = once(cable, 'exit');
    this.#unplug = async () => {
      cable.stdin.end();
      await exited;
    };
    const attached = once(cable.stdout, 'data');
    await Promise.race([attached, exited]);
    if (cable.exitCode !== null) throw new Error('the cable was not attached');
    await run('ip', ['-n', this.namespace, 'route', 'add', 'default', 'via', slot.gatewayAddress]);
  }

  /** Output of a Python program among the fixtures that runs in the guest's place. */
  async run(program: string, ...args: string[]): Promise<string> {
    return (await withinSlot(this, 'python3', fixture(program), ...args)).trim();
  }

  /** Starts a server of outside-server.py in the guest's place. @returns when it listens */
  async serve(kind: string, port: number): Promise<void> {
    const command = ['python3', fixture('outside-server.py'), kind, String(port)];
    const server = spawn('nsenter', [`--net=/run/netns/${this.namespace}`, ...command], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    this.#servers.push(server);
    await once(server.stdout, 'data');
  }

  /** The peer's neighbour entry for the address. */
  async neighbours(): Promise<string> {
    return run('ip', ['-n', this.namespace, 'neighbour', 'show']);
  }

  /** Adds a neighbour entry for the address, so that the peer sends no ARP request. */
  async learn(address: string, mac: string): Promise<void> {
    const entry = [address, 'lladdr', mac, 'dev', 'eth0', 'nud', 'permanent'];
    await run('ip', ['-n', this.namespace, 'neighbour', 'replace', ...entry]);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#unplug?.();
    for (const server of this.#servers) {
      const exited = once(server, 'exit');
      server.kill('SIGKILL');
      await exited;
    }
    await run('ip', ['netns', 'delete', this.namespace]).catch(() => undefined);
  }
}
