import assert from 'node:assert';
import { copyFile, mkdir, readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { toError } from '../../shared/errors.ts';
import type { ApiClient } from '../helpers/api.ts';
import { LoopWatch } from '../helpers/loops.ts';
import { sandboxSettings } from '../helpers/sandboxes.ts';
import { freePorts } from '../helpers/ports.ts';
import { Stack, type StackNode } from '../helpers/stack.ts';
import { inject } from './faults.ts';
import type { Findings } from './findings.ts';
import { type Fault, type FaultKind, planRound, PROCESS_PACES, PROCESS_RULES } from './plan.ts';
import { Relay, type Relays } from './relay.ts';
import { SlowCalls } from './slow-calls.ts';
import { SmallStorage } from './storage.ts';
import type { Lifted, System } from './system.ts';
import { Supervisor } from './supervisor.ts';
import { MiB } from '../../shared/units.ts';

const answers = async (url: string): Promise<boolean> => {
  try {
    return (await fetch(url, { signal: AbortSignal.timeout(2_000) })).ok;
  } catch {
    return false;
  }
};

const adminUrlOf = ({ environment }: StackNode): string =>
  `http://127.0.0.1:${environment['AGENT_ADMIN_PORT']}/readyz`;

/**
 * A control node and two hosts that share one storage, all supervised: what is killed comes back.
 * The second host reaches Redis, and is reached, through relays.
 */
export class Cluster implements System<FaultKind> {
  readonly stack: Stack;
  readonly storage: SmallStorage;
  readonly relays: Relays;
  /** Delays of each host. */
  readonly slowCalls: readonly [SlowCalls, SlowCalls];
  readonly control: Supervisor;
  readonly redis: Supervisor;
  readonly agents: readonly [Supervisor, Supervisor];
  readonly findings: Findings;
  readonly needsSync = false;
  readonly #loops: LoopWatch;

  private constructor(
    parts: Pick<Cluster, 'stack' | 'storage' | 'relays' | 'slowCalls'>,
    findings: Findings,
  ) {
    const { stack } = parts;
    this.stack = stack;
    this.storage = parts.storage;
    this.relays = parts.relays;
    this.slowCalls = parts.slowCalls;
    this.findings = findings;
    this.#loops = new LoopWatch(parts.storage.path, (fault) => findings.report(fault));
    const [first, second] = stack.agents;
    assert(first !== undefined && second !== undefined);
    const supervise = (node: StackNode): Supervisor =>
      new Supervisor(node.daemon, () => answers(adminUrlOf(node)), findings);
    this.agents = [supervise(first), supervise(second)];
    const controlUrl = `${stack.baseUrl}/readyz`;
    this.control = new Supervisor(stack.control, () => answers(controlUrl), findings);
    // The others are ready only if Redis is.
    this.redis = new Supervisor(stack.redis, () => Promise.resolve(true), findings);
  }

  static async start(findings: Findings): Promise<Cluster> {
    const [linkPort, internalPort] = await freePorts(2);
    assert(linkPort !== undefined && internalPort !== undefined);
    const storage = await SmallStorage.create();
    const slowCalls = [
      await SlowCalls.build(storage.path, 'first'),
      await SlowCalls.build(storage.path, 'second'),
    ] as const;
    const links = await Relay.to(linkPort);
    const settings = {
      ...sandboxSettings(),
      CONTROL_INTERNAL_PORT: String(linkPort),
      CONTROL_INTERNAL_URL: `http://127.0.0.1:${links.port}`,
      STORAGE_DIR: storage.directory,
      ...slowCalls[0].environment,
      STORAGE_RESERVE_BYTES: String(SmallStorage.reserveBytes),
      DISK_SIZE_BYTES: String(192 * MiB),
      EXEC_TIMEOUT_MS: '20000',
      EXEC_SLOTS: '6',
    };
    // Detached: Ctrl-C in the terminal must reach the run only, which ends these processes itself.
    const isDetached = true;
    const stack = await Stack.start(settings, [], isDetached);
    const redisUrl = new URL(stack.environment['REDIS_URL'] ?? '');
    const redis = await Relay.to(Number(redisUrl.port));
    redisUrl.port = String(redis.port);
    const internal = await Relay.to(internalPort);
    const second = await stack.addAgent({
      REDIS_URL: redisUrl.href,
      AGENT_ADMIN_PORT: String(internalPort),
      AGENT_INTERNAL_URL: `http://127.0.0.1:${internal.port}`,
      ...slowCalls[1].environment,
    });
    second.daemon.isDetached = isDetached;
    await second.start();
    return new Cluster({ stack, storage, slowCalls, relays: { links, redis, internal } }, findings);
  }

  get objectUrls(): readonly string[] {
    const hosts = this.stack.agents.map(({ environment }) => environment['AGENT_PUBLIC_URL'] ?? '');
    return [this.stack.baseUrl, ...hosts];
  }

  newClient(): Promise<ApiClient> {
    return this.stack.newClient();
  }

  /** Folders of disks on the storage. */
  diskFolders(): Promise<string[]> {
    return readdir(join(this.storage.directory, 'disks'));
  }

  plan(seed: number, round: number, roundMs: number, only?: readonly string[]): Fault<FaultKind>[] {
    const how = { rules: PROCESS_RULES, paces: PROCESS_PACES, hosts: 2 };
    return planRound(seed, round, { roundMs, only, ...how });
  }

  inject(fault: Fault<FaultKind>): Promise<Lifted> {
    return inject(this, fault);
  }

  dataDir(host: 0 | 1): string {
    return this.stack.agents[host]?.environment['AGENT_DATA_DIR'] ?? '';
  }

  get supervisors(): readonly Supervisor[] {
    return [this.redis, this.control, ...this.agents];
  }

  /** Mends everything: all processes run and no relay or storage disturbs them. */
  async mend(): Promise<void> {
    for (const relay of Object.values(this.relays)) {
      relay.mend();
      relay.slowDown(0);
    }
    await this.storage.free();
    for (const slow of this.slowCalls) await slow.set({});
    for (const supervisor of this.supervisors) await supervisor.untilReady();
  }

  /** Copies the logs of all processes, to investigate findings. */
  async saveLogs(directory: string): Promise<void> {
    await mkdir(directory, { recursive: true });
    for (const name of await readdir(this.stack.directory)) {
      if (name.endsWith('.log')) {
        await copyFile(join(this.stack.directory, name), join(directory, name));
      }
    }
  }

  /** Ends everything. Whatever is left on the host afterwards is a finding. */
  async stop(): Promise<void> {
    this.#loops.stop();
    for (const supervisor of this.supervisors) await supervisor.release();
    for (const relay of Object.values(this.relays)) relay.mend();
    try {
      await this.stack.stop();
    } catch (error) {
      this.findings.count('leftovers');
      this.findings.report(`left on the host: ${toError(error).message}`);
    }
    for (const relay of Object.values(this.relays)) await relay[Symbol.asyncDispose]();
    try {
      await this.storage.remove();
    } catch (error) {
      this.findings.count('leftovers');
      this.findings.report(`the storage is still in use: ${toError(error).message}`);
    }
  }
}
