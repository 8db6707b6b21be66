/* A region of hosts that share the storage of their sandboxes (moving-agents.ts). */
import { randomBytes } from 'node:crypto';
import { mkdirSync, readdirSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type Directory, openDirectory } from '../../shared/directory/directory.ts';
import { isPresent } from '../../shared/directory/hosts.ts';
import { newAccountId, newHostId, newSandboxId } from '../../shared/ids.ts';
import type { HostOrder } from '../../shared/schemas/host.ts';
import { MovingHost, type Row } from './moving-agents.ts';
import { startRedis } from './redis.ts';
import { temporaryDirectory } from './temporary.ts';
import { waitFor } from './wait.ts';

const SILENCE_MS = 500;
/** Longer than a host needs to take it, also on a machine that is busy. */
const RELEASED_MS = 60_000;

interface RegionSettings {
  readonly hosts: number;
  readonly memoryMib?: readonly number[];
  /** How long a sandbox stays released before its host reclaims it, and until the next release. */
  readonly releasedMs?: number;
}

/** Some hosts, up, with everything that they share. */
export class MovingRegion implements AsyncDisposable {
  readonly hosts: readonly MovingHost[];
  readonly directory: Directory;
  readonly accountId: string;
  readonly #path: string;
  readonly #stack: AsyncDisposableStack;

  private constructor(
    parts: Pick<MovingRegion, 'hosts' | 'directory' | 'accountId'>,
    path: string,
    stack: AsyncDisposableStack,
  ) {
    this.hosts = parts.hosts;
    this.directory = parts.directory;
    this.accountId = parts.accountId;
    this.#path = path;
    this.#stack = stack;
  }

  static async open({
    hosts: count,
    memoryMib = [],
    releasedMs = RELEASED_MS,
  }: RegionSettings): Promise<MovingRegion> {
    const stack = new AsyncDisposableStack();
    const { path } = stack.use(await temporaryDirectory());
    const { redis } = stack.use(await startRedis());
    for (const name of ['shared', 'watch']) mkdirSync(join(path, name));
    const accountId = newAccountId();
    const common = {
      ...{ accountId, directory: join(path, 'shared'), watch: join(path, 'watch') },
      ...{ redisPort: redis.options.port ?? 0, key: randomBytes(32).toString('hex') },
      ...{ silenceMs: SILENCE_MS, releasedMs },
    };
    const hosts = Array.from({ length: count }, (_, index) => {
      const dataDir = join(path, `host-${index}`);
      const own = { hostId: newHostId(), dataDir, memoryMib: memoryMib[index] ?? 65_536 };
      return new MovingHost({ ...common, ...own });
    });
    const directory = openDirectory(redis, 'local-test');
    const region = new MovingRegion({ hosts, directory, accountId }, path, stack);
    for (const host of hosts) stack.defer(() => host.kill());
    await Promise.all(hosts.map((host) => host.start()));
    await waitFor('their reports', async () => (await directory.hosts.list()).length === count);
    return region;
  }

  async order({ hostId }: MovingHost, order: HostOrder): Promise<void> {
    await this.directory.hosts.give(hostId, order);
  }

  /** Waits until a host follows an order. */
  async follows({ hostId }: MovingHost, order: HostOrder): Promise<void> {
    await waitFor(`${hostId} to be ${order}`, async () => {
      const entry = await this.directory.hosts.get(hostId);
      return entry?.report.order === order && isPresent(entry);
    });
  }

  /** Says that a host is off. */
  async fence({ hostId }: MovingHost): Promise<void> {
    const entry = await this.directory.hosts.get(hostId);
    if (entry !== undefined) await this.directory.hosts.fence(hostId, entry.report);
  }

  /** Creates a sandbox that runs. */
  async create(host: MovingHost): Promise<string> {
    const id = newSandboxId();
    await host.ask({ call: 'create', id });
    return id;
  }

  /** The hosts whose journals have a sandbox, of those that run. */
  async hostsOf(id: string): Promise<{ readonly host: MovingHost; readonly row: Row }[]> {
    const found = this.hosts.map(async (host) => {
      const row = (await host.rows()).find((each) => each.id === id);
      return row === undefined ? [] : [{ host, row }];
    });
    return (await Promise.all(found)).flat();
  }

  /** The host that has a sandbox, as the directory tells. */
  async hostOf(id: string): Promise<string | undefined> {
    return (await this.directory.sandboxes.get(this.accountId, id))?.hostId;
  }

  /** The places of a machine's directory. */
  placesOf(vmId: string): string[] {
    return this.#places.filter((place) =>
      readdirSync(join(this.#path, 'shared', place)).includes(vmId),
    );
  }

  /** The machines in the directory of a host. */
  machinesOf({ hostId }: MovingHost): string[] {
    return readdirSync(join(this.#path, 'shared/hosts', hostId));
  }

  directoryOf({ hostId }: MovingHost, vmId: string): string {
    return join(this.#path, 'shared/hosts', hostId, vmId);
  }

  /** The things that must never happen and did. */
  async faults(): Promise<string> {
    return readFile(join(this.#path, 'watch', 'faults'), 'utf8').catch(() => '');
  }

  /** Everything that there is of any sandbox. */
  async leftovers(): Promise<string[]> {
    const { sandboxes, sandboxCapacity } = this.directory;
    const machines = this.#places.flatMap((place) =>
      readdirSync(join(this.#path, 'shared', place)).map((name) => `${place}/${name}`),
    );
    const ofHosts = this.hosts.map(async (host) => {
      const rows = (await host.rows()).map(({ id, state }) => `${id} ${state} in a journal`);
      const { memoryMib } = await sandboxCapacity.used(host.hostId);
      const held = memoryMib === 0 ? [] : [`${memoryMib} MiB are counted`];
      return [...rows, ...held, ...host.slots.map((slot) => `slot ${slot}`)];
    });
    const copies = readdirSync(join(this.#path, 'shared/bases'));
    const published = (await sandboxes.list(this.accountId)).map(({ id }) => `${id} is published`);
    return [...machines, ...copies, ...(await Promise.all(ofHosts)).flat(), ...published];
  }

  get #places(): string[] {
    return [
      'released',
      ...readdirSync(join(this.#path, 'shared/hosts')).map((id) => `hosts/${id}`),
    ];
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#stack.disposeAsync();
  }
}
