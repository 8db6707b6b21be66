/*
 * The part of an agent that has sandboxes, with everything of it real but machines and namespaces.
 */
import { AsyncLocalStorage } from 'node:async_hooks';
import { join } from 'node:path';
import type { Redis } from 'ioredis';
import { pino, type Logger } from 'pino';
import { Journal } from '../../agent/system/journal/journal.ts';
import { SlotPool } from '../../agent/network/slots/slot-pool.ts';
import { FairTurns } from '../../agent/system/queues/fair-turns.ts';
import { HostCapacity } from '../../agent/sandboxes/holds/host-capacity.ts';
import { Publisher, SandboxPublisher } from '../../agent/sandboxes/lifecycle/publisher.ts';
import { PrewarmedMachines } from '../../agent/sandboxes/prewarming/prewarmed-machines.ts';
import { recoverAtStart } from '../../agent/sandboxes/recover-at-start.ts';
import { SandboxCreator } from '../../agent/sandboxes/sandbox-creator.ts';
import { SandboxPolicies } from '../../agent/sandboxes/holds/sandbox-policies.ts';
import { SandboxRegistry } from '../../agent/sandboxes/sandbox-registry.ts';
import { Snapshots as HostSnapshots } from '../../agent/sandboxes/snapshots/snapshots.ts';
import { UidPool } from '../../agent/sandboxes/holds/uid-pool.ts';
import { SandboxCapacity } from '../../shared/directory/capacity.ts';
import { Snapshots } from '../../shared/directory/snapshots.ts';
import { Sandboxes } from '../../shared/directory/sandboxes.ts';
import { AppError } from '../../shared/errors.ts';
import { SYSTEM_LIMITS } from '../../agent/system/limits.ts';
import type { SnapshotRecord } from '../../shared/schemas/snapshot-record.ts';
import { StorageWatch } from '../../shared/storage-watch.ts';
import type { FakeTime } from '../helpers/fake-time.ts';
import type { InMemoryHost } from '../helpers/in-memory-host.ts';
import { noMounts } from '../helpers/no-mounts.ts';
import { InMemoryDriver } from '../helpers/in-memory-driver.ts';
import { builtImage, type InMemoryImages } from '../helpers/in-memory-images.ts';
import type { PendingKind, Schedule } from './schedule.ts';

export const HOST_ID = 'host-0123456789ab';
export const REGION = 'test-1';
const UID_BASE = 700_000_000;
const ENCRYPTION_KEY = Buffer.alloc(32);
const BOOT_MS_MAX = 30_000;
/** So few that they run out. */
export const SLOTS = 12;
const TOTAL = { memoryMib: 10 * 480, vcpus: 12 };

/** Which agent's code runs: one that is dead must not do anything any more. */
const running = new AsyncLocalStorage<SimulatedAgent>();

export const runningAgent = (): SimulatedAgent | undefined => running.getStore();

const idInText = /[0-9a-f]{8}-[0-9a-f-]{27}/u;

/** Calls an object's methods within `around`. */
function around<T extends object>(
  target: T,
  call: (name: string, work: () => Promise<unknown>, args: unknown[]) => Promise<unknown>,
): T {
  return new Proxy(target, {
    get(object, name) {
      const value: unknown = Reflect.get(object, name, object);
      if (typeof value !== 'function') return value;
      return (...args: unknown[]) =>
        call(String(name), async () => (await Reflect.apply(value, object, args)) as unknown, args);
    },
  });
}

const turns = (): FairTurns => new FairTurns({ count: 2, perAccountMax: 2, refusal: '' });

/** Users that machines have. */
export class CountedUids extends UidPool {
  readonly taken: Set<number>;

  constructor(taken: readonly number[]) {
    super(UID_BASE, taken);
    this.taken = new Set(taken);
  }

  override take(): number {
    const uid = super.take();
    this.taken.add(uid);
    return uid;
  }

  override hold(uid: number): boolean {
    this.taken.add(uid);
    return super.hold(uid);
  }

  override takePlaceholder(): number {
    const placeholder = super.takePlaceholder();
    this.taken.add(placeholder);
    return placeholder;
  }

  override release(uid: number): void {
    super.release(uid);
    this.taken.delete(uid);
  }
}

interface Parts {
  readonly journal: Journal;
  readonly registry: SandboxRegistry;
  readonly creator: SandboxCreator;
  readonly snapshots: HostSnapshots;
  readonly capacity: HostCapacity;
  readonly slots: SlotPool;
  readonly uids: CountedUids;
  readonly close: () => void;
}

/** The host of an agent, with everything that outlives the agent (world.ts). */
export interface AgentWorld {
  readonly time: FakeTime;
  readonly redis: Redis;
  /** For the journal and the output of commands. */
  readonly directory: string;
  readonly schedule: Schedule;
  readonly host: InMemoryHost;
  readonly images: InMemoryImages;
  /** Slots of which there is something on the host. */
  readonly namespaces: Set<number>;
  readonly isRedisAway: boolean;
  /** An event that the agent has logged. */
  notice(agent: SimulatedAgent, event: Record<string, unknown>): void;
}

export class SimulatedAgent {
  readonly generation: number;
  isDead = false;
  /** True once the agent has taken up its journal. */
  isReady = false;
  /** Why it could not be started. */
  failure: unknown;
  readonly #world: AgentWorld;
  readonly #log: Logger;
  readonly #died = Promise.withResolvers<void>();
  #parts: Parts | undefined;
  #opening: Promise<Journal> | undefined;

  constructor(world: AgentWorld, generation: number) {
    this.#world = world;
    this.generation = generation;
    this.#log = pino(
      { level: 'debug', base: {} },
      { write: (line) => world.notice(this, JSON.parse(line) as Record<string, unknown>) },
    );
  }

  get parts(): Parts {
    if (this.#parts === undefined) throw new Error('the agent has not been started');
    return this.#parts;
  }

  /** Runs work that stops when the agent dies. */
  run<T>(work: () => T): T {
    return running.run(this, work);
  }

  /** Opens what it is made of; `recover` is then under way. */
  start(): Promise<void> {
    return this.run(async () => {
      const world = this.#world;
      this.#opening = Journal.open(join(world.directory, 'journal.sqlite'));
      const journal = await world.time.wait(this.#opening);
      const sandboxes = around(journal.sandboxes, (_, work) =>
        world.time.wait(work(), this.#died.promise),
      );
      const snapshotJournal = around(journal.snapshots, (_, work) =>
        world.time.wait(work(), this.#died.promise),
      );
      const rows = await sandboxes.list();
      const snapshotRows = await snapshotJournal.list();
      const leased = rows.flatMap(({ slot }) => (slot === undefined ? [] : [slot]));
      const log = this.#log;
      const storage = new StorageWatch({
        ...{ directories: [], reserveBytes: 0, refusal: new AppError('host_full', ''), log },
      });
      const directory = {
        sandboxes: this.#directory(new Sandboxes(world.redis, REGION)),
        capacity: this.#directory(new SandboxCapacity(world.redis)),
        snapshots: this.#directory(new Snapshots(world.redis, REGION)),
      };
      const capacity = new HostCapacity({
        ...{ hostId: HOST_ID, total: TOTAL, memoryReserveMib: 0, storage, log },
        directory: directory.capacity,
      });
      const publisher = new SandboxPublisher(directory.sandboxes, log);
      const uids = new CountedUids([...rows, ...snapshotRows].map(({ uid }) => uid));
      const [boots, resumes] = [turns(), turns()];
      const driver = new InMemoryDriver(world.host, {
        ...{ bootTimeoutMs: BOOT_MS_MAX, hasTemplates: true },
        gate: (point, id) => this.#wait('driver', point, id),
      });
      const slots = await SlotPool.open({
        ...{ hostId: HOST_ID, slotsMax: SLOTS, readyMax: 1, leased, log },
        namespaces: this.#namespaces(),
      });
      const images = world.images.open();
      world.images.build = async () => {
        await this.#wait('images', 'build image');
        return builtImage();
      };
      const policies = new SandboxPolicies([ENCRYPTION_KEY], undefined);
      const snapshotPublisher = new Publisher<SnapshotRecord>(directory.snapshots, log);
      const snapshots = new HostSnapshots(
        {
          ...{ hostId: HOST_ID, platform: 'amd64', driver, policies, images, uids, log },
          ...{ journal: snapshotJournal, publisher: snapshotPublisher },
        },
        snapshotRows,
      );
      const prewarmed = new PrewarmedMachines({
        ...{ driver, slots, uids, images, max: 2, log },
        copySnapshot: (id, to) => snapshots.copyAhead(id, to),
        isBusy: () => boots.used > 0 || resumes.used > 0,
        isLow: () => capacity.load.isLow,
      });
      const registry = new SandboxRegistry({
        ...{
          hostId: HOST_ID,
          dataDir: world.directory,
          platform: 'amd64',
          bootTimeoutMs: BOOT_MS_MAX,
          storage,
        },
        ...{
          uids,
          prewarmed,
          images,
          journal: sandboxes,
          driver,
          slots,
          policies,
          snapshots,
          mounts: noMounts,
          capacity,
          boots,
          resumes,
          publisher,
        },
        ...{ observeStart: () => undefined, log },
      });
      const creator = new SandboxCreator({
        ...{ registry, capacity, images, policies, prewarmed, snapshots, uids, image: undefined },
      });
      const close = (): void => {
        publisher.close();
        snapshotPublisher.close();
      };
      this.#parts = { journal, registry, creator, snapshots, capacity, slots, uids, close };
      await recoverAtStart({
        ...{ registry, takeover: undefined, journal: sandboxes, driver, mounts: noMounts },
        ...{ snapshots, uids, signal: new AbortController().signal, log },
      });
      this.#announceRegularly(capacity, registry);
      this.isReady = true;
    });
  }

  /** From one moment to the next: nothing of what it had begun goes on. */
  async kill(): Promise<void> {
    this.isDead = true;
    this.#world.schedule.forget(this.generation);
    for (const vm of this.#world.host.vms.values()) vm.guest.disconnect();
    await this.#world.time.settle();
    const journal = await this.#opening?.catch(() => undefined);
    const closing = journal?.close();
    // A statement that comes behind the closing may never be answered.
    this.#died.resolve();
    await closing;
    await this.#world.time.settle();
    // Last: what noticed the end of its connections has set timers, too.
    this.#world.time.forgetTimers();
  }

  /** Every point at which something may happen to it. */
  async reach(point: string): Promise<void> {
    await this.#wait('failpoint', point);
  }

  #wait(kind: PendingKind, point: string, id?: string): Promise<void> {
    if (this.isDead) return new Promise(() => undefined);
    return this.#world.schedule.wait(this.generation, kind, point, id);
  }

  /** Redis is there or not, and may be gone before or after it did what it was asked to. */
  #directory<T extends object>(target: T): T {
    const { time } = this.#world;
    return around(target, async (name, work, args) => {
      const [about] = idInText.exec(JSON.stringify(args)) ?? [];
      await this.#wait('directory', `before ${name}`, about);
      if (this.#world.isRedisAway) throw new Error('Connection is closed.');
      const result = await time.wait(work(), this.#died.promise);
      await this.#wait('directory', `after ${name}`, about);
      return result;
    });
  }

  #namespaces(): NonNullable<Parameters<typeof SlotPool.open>[0]['namespaces']> {
    const present = this.#world.namespaces;
    return {
      list: async () => [...present],
      make: async ({ index }) => {
        await this.#wait('slots', 'make slot', String(index));
        if (present.has(index)) this.#world.host.fault(`slot ${index} was made twice`);
        present.add(index);
      },
      renew: async ({ index }) => {
        await this.#wait('slots', 'renew slot', String(index));
        return present.has(index);
      },
      remove: async ({ index }) => {
        await this.#wait('slots', 'remove slot', String(index));
        const user = this.#world.host.running.find(({ slot }) => slot === index);
        // The slot of a machine without an owner may go first.
        if (user !== undefined && this.isReady)
          this.#world.host.fault(`slot ${index} was taken from ${user.id}`);
        present.delete(index);
      },
    };
  }

  /** The same as in `openSandboxes`. */
  #announceRegularly(capacity: HostCapacity, registry: SandboxRegistry): void {
    const announce = (): void => {
      capacity
        .announce()
        .then((wasLost) => (wasLost ? registry.republish() : undefined))
        .catch((err: unknown) => this.#log.warn({ err }, 'capacity:publishFailed'));
    };
    announce();
    setInterval(announce, SYSTEM_LIMITS.hostAnnounceMs);
  }
}
