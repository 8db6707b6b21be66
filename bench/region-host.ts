import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { mkdir } from 'node:fs/promises';
import { pino } from 'pino';
import { answer, type JobProcessors } from '../agent/control-link/job-processors.ts';
import { JobWorker } from '../agent/control-link/job-worker.ts';
import { sandboxJobs } from '../agent/control-link/sandbox-jobs.ts';
import { Journal } from '../agent/system/journal/journal.ts';
import { ConnectionKeys } from '../agent/control-link/connection-keys.ts';
import { ControlLinks } from '../agent/control-link/control-link.ts';
import { HostBeat } from '../agent/control-link/host-beat.ts';
import { answerLinkRequest } from '../agent/control-link/link-endpoint.ts';
import { HostOrders } from '../agent/control-link/host-orders.ts';
import { type HostSandboxes, openSandboxes } from '../agent/sandboxes/open-sandboxes.ts';
import type { SandboxSettings } from '../agent/sandboxes/holds/settings.ts';
import { Beat } from '../agent/system/beat.ts';
import { type Directory, openDirectory } from '../shared/directory/directory.ts';
import { connectDirectory } from '../shared/directory/redis.ts';
import { AppError } from '../shared/errors.ts';
import { runInBackground } from '../shared/background.ts';
import { newHostId, newSandboxId } from '../shared/ids.ts';
import { JobSeal } from '../shared/jobs/job-seal.ts';
import type { JobKind } from '../shared/jobs/jobs.ts';
import { Histogram } from '../shared/metrics.ts';
import { PartRequestGate } from '../shared/links/part-requests.ts';
import { StorageWatch } from '../shared/storage-watch.ts';
import { InMemoryDriver } from '../test/helpers/in-memory-driver.ts';
import { InMemoryHost } from '../test/helpers/in-memory-host.ts';
import { InMemoryImages } from '../test/helpers/in-memory-images.ts';
import { InMemoryNamespaces } from '../test/helpers/in-memory-namespaces.ts';
import { InMemoryPolicies } from '../test/helpers/in-memory-policies.ts';
import { noMounts } from '../test/helpers/no-mounts.ts';
import type { RegionSettings } from './region-settings.ts';

/** The size of every sandbox of the region. */
const SANDBOX = { vcpuCount: 1, memSizeMib: 256 } as const;

const log = pino({ level: 'silent' });
const refusal = new AppError('host_full', 'the storage of this host is full');

/** Room for twice as many sandboxes as the region begins with. */
const sandboxSettings = (sandboxes: number): SandboxSettings => ({
  runtime: { kind: 'microvm', guestDir: '', rootDisk: '', accelerator: 'tcg', hasTemplates: false },
  ...{ uidBase: 700_000_000, bootTimeoutMs: 60_000, memoryReserveMib: 0 },
  ...{ memoryMib: (sandboxes * 2 + 16) * 1024, vcpus: sandboxes * 2 + 16 },
  ...{ slotsMax: Math.min(4096, sandboxes * 2 + 16), slotsReady: 0, prewarmedMax: 0 },
  ...{ network: undefined, trustedCertificates: undefined, shared: undefined },
});

const refuse = (): never => {
  throw new AppError('not_enabled', 'a simulated host has no containers');
};

/** Disks of a simulated host are records only: nothing is made and nothing is attached. */
const processorsOf = ({ registry, creator }: HostSandboxes): JobProcessors<JobKind> => ({
  'exec.run': refuse,
  'grep.run': refuse,
  'image.build': refuse,
  'disk.create': async () => answer({}),
  'disk.delete': async () => answer({}),
  'disk.record': async () => answer({}),
  'disk.checkMount': refuse,
  'disk.release': async () => answer({}),
  'disk.stat': refuse,
  'disk.delegations': async () => answer({ delegations: [] }),
  'disk.revoke': refuse,
  ...sandboxJobs({ registry, creator, storage: { refuseIfUnusable: () => undefined } }),
});

const histogram = <L extends string>(name: string, ...labelNames: L[]): Histogram<L> =>
  new Histogram({ name, help: name, labelNames, registers: [] });

/** Capacity of a simulated host, and the place of its journal. */
export interface SimulatedHostOptions {
  readonly settings: RegionSettings;
  readonly directory: string;
  readonly sandboxes: number;
}

/** All hosts of a process share the watch: they have the same file system. */
export const watchStorage = (directory: string): StorageWatch =>
  new StorageWatch({ directories: [directory], reserveBytes: 0, refusal, log });

/**
 * A host whose links, workers, journal and sandboxes are those of an agent. Only its machines,
 * network slots and disks are not there.
 */
export class SimulatedHost {
  readonly #sandboxes: HostSandboxes;
  readonly #close: () => Promise<void>;

  private constructor(sandboxes: HostSandboxes, close: () => Promise<void>) {
    this.#sandboxes = sandboxes;
    this.#close = close;
  }

  static async open(
    { settings, directory: place, sandboxes: count }: SimulatedHostOptions,
    storage: StorageWatch,
  ): Promise<SimulatedHost> {
    const hostId = newHostId();
    const dataDir = join(place, hostId);
    await mkdir(join(dataDir, 'output'), { recursive: true });
    const redis = connectDirectory(settings.redis, () => undefined);
    await redis.connect();
    const directory = openDirectory(redis, settings.region);
    const journal = await Journal.open(join(dataDir, 'journal'));
    const beat = new Beat();
    const sandboxes = await openSandboxes(sandboxSettings(count), {
      beat,
      ...{ hostId, dataDir, journal, storage, directory, log, image: undefined, mounts: noMounts },
      images: new InMemoryImages().open(),
      openDriver: async () => new InMemoryDriver(new InMemoryHost()),
      observeStart: () => undefined,
      namespaces: new InMemoryNamespaces(),
      policies: new InMemoryPolicies(),
      encryptionKeys: [Buffer.from(settings.encryptionKey, 'base64')],
    });
    const links = linksOf(hostId, settings, sandboxes);
    const worker = new JobWorker({
      ...{ hostId, links, log, execSlots: 0, processors: processorsOf(sandboxes) },
      redis: settings.redis,
      seal: new JobSeal([settings.clusterSecret]),
      jobDurations: histogram('job_durations', 'kind', 'outcome'),
      jobWaits: histogram('job_waits', 'kind'),
    });
    links.start();
    const orders = await ordersOf(hostId, directory, sandboxes);
    const hostBeat = new HostBeat({
      ...{ hostId, directory, orders, beat, log },
      onOrder: () => links.sendLoad(),
      onNodes: (nodes) => links.linkTo(nodes),
    });
    hostBeat.start();
    const internal = await startInternalServer(hostId, settings, links);
    hostBeat.announce(urlOf(internal));
    return new SimulatedHost(sandboxes, async () => {
      await hostBeat.close();
      internal.close();
      links.close();
      await worker.close();
      await sandboxes.close();
      await journal.close();
      redis.disconnect();
    });
  }

  /** Makes a sandbox without any control node, and returns its id once it runs. */
  async addSandbox(accountId: string, name: string): Promise<string> {
    const sandboxId = newSandboxId();
    const actor = await this.#sandboxes.creator.create({
      ...{ sandboxId, accountId, environment: {} },
      config: {
        ...{ name, ...SANDBOX, maxTtlSeconds: 86_400, idleTtlSeconds: 0 },
        ...{ maxConcurrentExecs: 4, baseImage: '' },
      },
    });
    await actor.settled(60_000);
    return sandboxId;
  }

  async close(): Promise<void> {
    await this.#close();
  }
}

/** The internal port of a host, at which control nodes ask for links. */
async function startInternalServer(
  hostId: string,
  { clusterSecret }: RegionSettings,
  links: ControlLinks,
): Promise<Server> {
  const gate = new PartRequestGate({ clusterSecrets: [clusterSecret], hostId, log });
  const answerTo = gate.admitting('link-request', (_request, response, claims) =>
    runInBackground('link.open', () => answerLinkRequest(links, response, claims)),
  );
  const server = createServer(answerTo).listen(0, '127.0.0.1');
  await once(server, 'listening');
  return server;
}

const urlOf = (server: Server): string =>
  `http://127.0.0.1:${(server.address() as AddressInfo).port}`;

/** The orders and figures of a host that has nothing but sandboxes. */
const ordersOf = (
  hostId: string,
  directory: Directory,
  sandboxes: HostSandboxes,
): Promise<HostOrders> =>
  HostOrders.open({
    ...{ hostId, directory, config: { execSlots: 0 }, log },
    host: {
      ...{ execs: { running: 0, waiting: 0 }, storage: { freeBytes: 0 }, sandboxes },
      disks: { attached: 0, held: [], releaseUnused: async () => undefined },
    },
  });

function linksOf(
  hostId: string,
  { clusterId, clusterSecret, region }: RegionSettings,
  sandboxes: HostSandboxes,
): ControlLinks {
  return new ControlLinks({
    ...{ hostId, clusterId, clusterSecrets: [clusterSecret], region, log },
    publicUrl: 'http://127.0.0.1:1',
    internalUrl: 'http://127.0.0.1:2',
    sandboxRuntime: 'microvm',
    connectionKeys: new ConnectionKeys({ hostId, region }),
    load: () => ({
      ...{ execSlots: 0, execsRunning: 0, execsWaiting: 0, storageLow: false, draining: false },
      sandboxes: { isEnabled: true, ...sandboxes.load },
    }),
    onCancel: () => undefined,
    onCutOff: () => undefined,
  });
}
