import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { pino } from 'pino';
import { Journal } from '../../agent/journal/journal.ts';
import { type HostSandboxes, openSandboxes } from '../../agent/sandboxes/open-sandboxes.ts';
import type { NewSandbox } from '../../agent/sandboxes/sandbox-registry.ts';
import type { SandboxSettings } from '../../agent/sandboxes/settings.ts';
import { openDirectory } from '../../shared/directory/directory.ts';
import { AppError } from '../../shared/errors.ts';
import { newAccountId, newSandboxId } from '../../shared/ids.ts';
import { StorageWatch } from '../../shared/storage-watch.ts';
import { type Gate, InMemoryDriver } from './in-memory-driver.ts';
import { InMemoryHost } from './in-memory-host.ts';
import { startRedis } from './redis.ts';
import { SlotHost } from './slots.ts';
import { temporaryDirectory } from './temporary.ts';

const log = pino({ level: 'silent' });

const settings = {
  ...{ guestDir: '', rootDisk: '', accelerator: 'tcg', hasTemplates: false },
  ...{ uidBase: 700_000_000, bootTimeoutMs: 60_000, memoryMib: 65_536, vcpus: 64 },
  ...{ memoryReserveMib: 0, slotsMax: 16, slotsReady: 0, prewarmedMax: 0 },
} as const satisfies SandboxSettings;

interface Agent {
  readonly sandboxes: HostSandboxes;
  readonly journal: Journal;
}

/**
 * The sandboxes of a host as an agent opens them, with a journal, a directory and network slots of
 * its own; only the machines are in memory.
 */
export class HostedSandboxes implements AsyncDisposable {
  readonly machines = new InMemoryHost();
  readonly accountId = newAccountId();
  /** What a test may have the driver wait or fail at. */
  gate: Gate = () => new Promise((resolve) => setImmediate(resolve));
  readonly #stack = new AsyncDisposableStack();
  readonly #open: () => Promise<Agent>;
  #opened: Agent | undefined;

  private constructor(open: () => Promise<Agent>, stack: AsyncDisposableStack) {
    this.#open = open;
    this.#stack = stack;
  }

  static async open(): Promise<HostedSandboxes> {
    const stack = new AsyncDisposableStack();
    const { path: dataDir } = stack.use(await temporaryDirectory());
    const { redis } = stack.use(await startRedis());
    const { hostId } = stack.use(new SlotHost());
    const refusal = new AppError('host_full', 'full');
    const storage = new StorageWatch({ directories: ['/'], reserveBytes: 0, refusal, log });
    stack.defer(() => storage.close());
    await mkdir(join(dataDir, 'output'));
    const hosted: HostedSandboxes = new HostedSandboxes(async () => {
      const journal = await Journal.open(join(dataDir, 'journal'));
      const directory = openDirectory(redis, 'local-test');
      const parts = { hostId, dataDir, journal, storage, directory, log, image: undefined };
      const sandboxes = await openSandboxes(settings, {
        ...parts,
        openDriver: async () =>
          new InMemoryDriver(hosted.machines, { gate: (point, id) => hosted.gate(point, id) }),
        observeStart: () => undefined,
      });
      return { sandboxes, journal };
    }, stack);
    await hosted.startAgent();
    return hosted;
  }

  get registry(): HostSandboxes['registry'] {
    if (this.#opened === undefined) throw new Error('no agent is there');
    return this.#opened.sandboxes.registry;
  }

  /** A sandbox that runs. */
  async create(): Promise<{ accountId: string; sandboxId: string }> {
    const config: NewSandbox['config'] = {
      ...{ name: `sandbox-${this.machines.list().length}`, vcpuCount: 1, memSizeMib: 256 },
      ...{ maxTtlSeconds: 3600, idleTtlSeconds: 0, maxConcurrentExecs: 4, baseImage: '' },
    };
    const id = newSandboxId();
    const { accountId } = this;
    const sandbox = { id, accountId, config, environment: {} };
    const actor = await this.registry.create(sandbox);
    await actor.settled(10_000);
    return { accountId, sandboxId: id };
  }

  /** Machines run on. */
  async stopAgent(): Promise<void> {
    await this.#opened?.sandboxes.close();
    await this.#opened?.journal.close();
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
