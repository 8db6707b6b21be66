/* All that there is in one run of the simulation. */
import type { Redis } from 'ioredis';
import { Random } from '../helpers/random.ts';
import type { FakeTime } from '../helpers/fake-time.ts';
import { InMemoryHost } from '../helpers/in-memory-host.ts';
import { InMemoryImages } from '../helpers/in-memory-images.ts';
import { Ledger } from './ledger.ts';
import { Schedule } from './schedule.ts';
import { SimulatedAgent } from './simulated-agent.ts';

const text = (value: unknown): string => (typeof value === 'string' ? value : '');

/** State that outlives a run. */
export interface Surroundings {
  readonly time: FakeTime;
  readonly redis: Redis;
  /** Empty: for the journal and the output of commands. */
  readonly directory: string;
}

export class World {
  readonly time: FakeTime;
  readonly redis: Redis;
  readonly directory: string;
  readonly random: Random;
  readonly schedule = new Schedule();
  readonly ledger = new Ledger();
  readonly host: InMemoryHost;
  readonly images = new InMemoryImages();
  /** Slots of which there is something on the host. */
  readonly namespaces = new Set<number>();
  /** Events so far, the newest last. */
  readonly trace: string[] = [];
  /** How often each kind of thing happened. */
  readonly counts = new Map<string, number>();
  isRedisAway = false;
  agent: SimulatedAgent;
  #generation = 1;
  readonly #beganMs: number;
  /** Answers that callers still wait for. */
  waiting = new Set<string>();

  constructor(seed: number, { time, redis, directory }: Surroundings) {
    this.time = time;
    this.#beganMs = time.monotonicMs;
    this.redis = redis;
    this.directory = directory;
    this.random = new Random(seed, 'simulation');
    this.host = new InMemoryHost((point, id, happen) => {
      this.schedule.add({
        ...{ point, id, agent: 0, kind: 'host', notBefore: 0, happen },
        fail: () => happen(),
      });
    });
    this.agent = new SimulatedAgent(this, this.#generation);
  }

  get broken(): string[] {
    return [...this.host.faults, ...this.ledger.broken];
  }

  note(kind: string, event: string): void {
    this.counts.set(kind, (this.counts.get(kind) ?? 0) + 1);
    this.trace.push(`${Math.round(this.time.monotonicMs - this.#beganMs)} ms: ${event}`);
  }

  /** An event that an agent has logged. */
  notice(agent: SimulatedAgent, event: Record<string, unknown>): void {
    if (agent.isDead) return;
    const [msg, id, state] = [text(event['msg']), text(event['sandboxId']), text(event['state'])];
    const cause = text(event['cause']);
    const { message = '' } = (event['err'] ?? {}) as { message?: string };
    this.trace.push(`  ${msg} ${id} ${state} ${cause}${message}`);
    if (msg !== 'sandbox:transitioned') return;
    if (state === 'running' && cause === 'the guest is ready') {
      const row = this.rowOf(id);
      if (row !== undefined) this.ledger.noteRunning(id, row);
      this.note('session', `session ${id}`);
    }
    if (cause === 'a time limit is reached') {
      this.ledger.checkLimit(id, this.time.monotonicMs);
      this.note('limit', `limit ${id}`);
    }
  }

  rowOf(id: string): ReturnType<SimulatedAgent['parts']['registry']['find']>['row'] | undefined {
    const known = this.ledger.sandboxes.get(id);
    if (known === undefined) return undefined;
    try {
      const { registry } = this.agent.parts;
      return registry.find({ accountId: known.accountId, sandboxId: id }).row;
    } catch {
      return undefined;
    }
  }

  /** The agent is killed as it is, and another one takes its place. */
  async replaceAgent(): Promise<void> {
    await this.agent.kill();
    this.waiting = new Set();
    for (const known of this.ledger.sandboxes.values()) known.limitCalls = 0;
    this.#generation += 1;
    this.agent = new SimulatedAgent(this, this.#generation);
    this.startAgent();
  }

  /** An agent that fails to start is started again, as its supervisor does. */
  startAgent(): void {
    const { agent } = this;
    agent.start().catch((error: unknown) => {
      this.note('start failed', `the agent did not start: ${String(error)}`);
      agent.failure = error;
    });
  }
}
