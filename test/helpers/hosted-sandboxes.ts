import { randomBytes } from 'node:crypto';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { Redis } from 'ioredis';
import { pino } from 'pino';
import { Journal } from '../../agent/system/journal/journal.ts';
import type { SandboxRow } from '../../agent/system/journal/sandbox-journal.ts';
import type { SnapshotRow } from '../../agent/system/journal/snapshot-journal.ts';
import { type HostSandboxes, openSandboxes } from '../../agent/sandboxes/open-sandboxes.ts';
import type { NewSandbox } from '../../agent/sandboxes/lifecycle/new-sandbox.ts';
import type { SandboxRef } from '../../agent/sandboxes/sandbox-registry.ts';
import type { SandboxSettings } from '../../agent/sandboxes/holds/settings.ts';
import { openDirectory } from '../../shared/directory/directory.ts';
import { Beat } from '../../agent/system/beat.ts';
import { AppError } from '../../shared/errors.ts';
import { newAccountId, newHostId, newSandboxId } from '../../shared/ids.ts';
import { StorageWatch } from '../../shared/storage-watch.ts';
import type { FakeTime } from './fake-time.ts';
import { type Gate, InMemoryDriver } from './in-memory-driver.ts';
import { InMemoryHost } from './in-memory-host.ts';
import { InMemoryImages } from './in-memory-images.ts';
import { InMemoryMounts } from './in-memory-mounts.ts';
import { InMemoryPolicies } from './in-memory-policies.ts';
import { InMemoryNamespaces } from './in-memory-namespaces.ts';
import { startRedis } from './redis.ts';
import { temporaryDirectory } from './temporary.ts';

const ENCRYPTION_KEY = randomBytes(32);

const log = pino({ level: 'silent' });

const settings = {
  runtime: { kind: 'microvm', guestDir: '', rootDisk: '', accelerator: 'tcg', hasTemplates: false },
  ...{ uidBase: 700_000_000, bootTimeoutMs: 60_000, memoryMib: 65_536, vcpus: 64 },
  ...{ memoryReserveMib: 0, slotsMax: 16, slotsReady: 0, prewarmedMax: 0, network: undefined },
  ...{ trustedCertificates: undefined, shared: undefined },
} as const satisfies SandboxSettings;

interface Agent {
  readonly sandboxes: HostSandboxes;
  readonly journal: Journal;
  /** Ends what its machines' driver is at, as a kill does. */
  kill(): void;
}

export interface HostTraits {
  readonly hasNetwork?: boolean;
  readonly pausedStaysInMemory?: boolean;
}

const never = new Promise<never>(() => undefined);

/**
 * The sandboxes of a host as an agent opens them, with a journal and a directory of its own; only
 * machines and network slots are in memory.
 */
export class HostedSandboxes implements AsyncDisposable {
  readonly machines = new InMemoryHost();
  readonly namespaces = new InMemoryNamespaces();
  readonly policies = new InMemoryPolicies();
  readonly images = new InMemoryImages();
  readonly mounts = new InMemoryMounts();
  readonly accountId = newAccountId();
  /** In memory, so it is always there. */
  readonly storage = { refuseIfUnusable: () => undefined };
  /** Settles when the storage of sandboxes answers; a test may have it hang. */
  storageAnswers: Promise<void> = Promise.resolve();
  /** A gate at which a test may delay or fail the driver. */
  gate: Gate = () => new Promise((resolve) => setImmediate(resolve));
  readonly #stack = new AsyncDisposableStack();
  readonly #open: () => Promise<Agent>;
  #opened: Agent | undefined;

  private constructor(open: () => Promise<Agent>, stack: AsyncDisposableStack) {
    this.#open = open;
    this.#stack = stack;
  }

  /**
   * @param given of a Redis that must have been started before time was faked
   * @param hasNetwork whether its sandboxes may have network policies
   * @param pausedStaysInMemory whether its driver says so, as that of containers does
   */
  static async open(
    given?: Redis,
    changes: Partial<SandboxSettings> = {},
    { hasNetwork = true, pausedStaysInMemory = false }: HostTraits = {},
  ): Promise<HostedSandboxes> {
    const stack = new AsyncDisposableStack();
    const { path: dataDir } = stack.use(await temporaryDirectory());
    const redis = given ?? stack.use(await startRedis()).redis;
    const hostId = newHostId();
    const refusal = new AppError('host_full', 'full');
    await mkdir(join(dataDir, 'output'));
    const hosted: HostedSandboxes = new HostedSandboxes(async () => {
      const journal = await Journal.open(join(dataDir, 'journal'));
      const directory = openDirectory(redis, 'local-test');
      const beat = new Beat();
      const parts = { hostId, dataDir, journal, storage, directory, beat, log, image: undefined };
      let isDead = false;
      const prewarms = (changes.prewarmedMax ?? 0) > 0;
      const gate: Gate = (point, id) => (isDead ? never : hosted.gate(point, id));
      const sandboxes = await openSandboxes(
        { ...settings, ...changes },
        {
          ...parts,
          images: hosted.images.open(),
          openDriver: async () =>
            new InMemoryDriver(hosted.machines, {
              ...{ gate, hasTemplates: prewarms, pausedStaysInMemory },
            }),
          observeStart: () => undefined,
          namespaces: hosted.namespaces,
          policies: hasNetwork ? hosted.policies : undefined,
          mounts: hosted.mounts,
          encryptionKeys: [ENCRYPTION_KEY],
        },
      );
      return { sandboxes, journal, kill: () => (isDead = true) };
    }, stack);
    const storage = new StorageWatch({
      ...{ directories: ['/'], reserveBytes: 0, refusal, log },
      check: async () => hosted.storageAnswers,
    });
    stack.defer(() => storage.close());
    await hosted.startAgent();
    return hosted;
  }

  get registry(): HostSandboxes['registry'] {
    if (this.#opened === undefined) throw new Error('no agent is there');
    return this.#opened.sandboxes.registry;
  }

  get creator(): HostSandboxes['creator'] {
    if (this.#opened === undefined) throw new Error('no agent is there');
    return this.#opened.sandboxes.creator;
  }

  get load(): HostSandboxes['load'] {
    if (this.#opened === undefined) throw new Error('no agent is there');
    return this.#opened.sandboxes.load;
  }

  /** Rows of the journal. */
  async journalledSandboxes(): Promise<SandboxRow[]> {
    return (await this.#opened?.journal.sandboxes.list()) ?? [];
  }

  async journalledSnapshots(): Promise<SnapshotRow[]> {
    return (await this.#opened?.journal.snapshots.list()) ?? [];
  }

  newSandbox(changes: Partial<NewSandbox['config']> = {}): NewSandbox {
    const config: NewSandbox['config'] = {
      ...{ name: `sandbox-${this.machines.list().length}`, vcpuCount: 1, memSizeMib: 256 },
      ...{ maxTtlSeconds: 3600, idleTtlSeconds: 0, maxConcurrentExecs: 4, baseImage: '' },
      ...changes,
    };
    return { sandboxId: newSandboxId(), accountId: this.accountId, config, environment: {} };
  }

  /** A sandbox that runs. */
  async create(changes: Partial<NewSandbox['config']> = {}): Promise<SandboxRef> {
    const sandbox = this.newSandbox(changes);
    const actor = await this.creator.create(sandbox);
    await actor.settled(10_000);
    return { accountId: sandbox.accountId, sandboxId: sandbox.sandboxId };
  }

  /** Machines run on. */
  async stopAgent(): Promise<void> {
    await this.#opened?.sandboxes.close();
    await this.#opened?.journal.close();
    this.#opened = undefined;
  }

  /** From one moment to the next; only with fake time, for its timers have to go. */
  async killAgent(time: FakeTime): Promise<void> {
    this.#opened?.kill();
    for (const vm of this.machines.vms.values()) vm.guest.disconnect();
    await time.settle();
    await this.#opened?.journal.close();
    await time.settle();
    time.forgetTimers();
    this.#opened = undefined;
  }

  async startAgent(): Promise<void> {
    this.#opened = await this.#open();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stopAgent();
    await this.#stack.disposeAsync();
  }
}
