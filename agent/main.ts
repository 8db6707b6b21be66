import type { RequestListener, Server } from 'node:http';
import { runInBackground } from '../shared/background.ts';
import { Authenticator } from '../shared/directory/authenticator.ts';
import { DATA_PATH } from '../shared/links/data-protocol.ts';
import { FILES_PATH } from '../shared/links/files-protocol.ts';
import { LINK_REQUEST_PATH } from '../shared/links/link-request.ts';
import { type Directory, openDirectory } from '../shared/directory/directory.ts';
import { redisNames } from '../shared/directory/redis-names.ts';
import { openRedis } from '../shared/directory/open-redis.ts';
import { AppError } from '../shared/errors.ts';
import { RequestForwarder } from '../shared/links/forward-request.ts';
import { createHttpMetrics, type HttpServerOptions } from '../shared/http/http-server.ts';
import { JobSeal } from '../shared/jobs/job-seal.ts';
import type { JobKind } from '../shared/jobs/jobs.ts';
import { LIMITS } from '../shared/limits.ts';
import { SANDBOX_LIMITS } from './sandboxes/limits.ts';
import type { Logger } from '../shared/log.ts';
import type { Gauge } from '../shared/metrics.ts';
import { PartRequestGate } from '../shared/links/part-requests.ts';
import { startOpsServer } from '../shared/http/ops-server.ts';
import { ownProcessFaults } from '../shared/process-faults.ts';
import { runService } from '../shared/settings/start-service.ts';
import { settledWithin } from '../shared/settled-within.ts';
import { openCertificates } from '../shared/tls/certificates.ts';
import { observe } from '../shared/tracing/observe.ts';
import type { ClusterTls } from '../shared/tls/part-connections.ts';
import { onShutdown } from '../shared/shutdown.ts';
import { NO_SANDBOXES } from '../shared/links/stream-protocol.ts';
import { type AgentConfig, checkAgentConfig, readAgentConfig } from './config.ts';
import { ConnectionKeys } from './control-link/connection-keys.ts';
import { answerLinkRequest } from './control-link/link-endpoint.ts';
import { ControlLinks } from './control-link/control-link.ts';
import { DiskTokens } from './edge/s3/auth/disk-tokens.ts';
import { DataEndpoint } from './edge/s3/data-endpoint.ts';
import { FilesEndpoint } from './edge/files/files-endpoint.ts';
import { type ObjectDurations, ObjectGateway } from './edge/s3/object-gateway.ts';
import { RemoteObjects } from './edge/s3/remote-objects.ts';
import { HostBeat } from './control-link/host-beat.ts';
import { HostOrders } from './control-link/host-orders.ts';
import { claimHost, type Host, openHost } from './host.ts';
import { commandJobs } from './control-link/command-jobs.ts';
import { diskJobs } from './control-link/disk-jobs.ts';
import { ImageBuilds } from './images/image-builds.ts';
import { imageJobs } from './control-link/image-jobs.ts';
import type { JobProcessors } from './control-link/job-processors.ts';
import { Ingress, type IngressMetrics } from './edge/ingress/ingress.ts';
import { JobWorker, type JobWorkerDeps } from './control-link/job-worker.ts';
import { noSandboxJobs, sandboxJobs } from './control-link/sandbox-jobs.ts';
import {
  ConnectionServer,
  type ConnectionServerOptions,
} from './edge/connections/connection-server.ts';
import { clusterAddresses } from './network/slots/cluster-addresses.ts';
import { createAgentMetrics, createClusterGauges } from './metrics.ts';
import { startPublicServer } from './edge/public-server.ts';
import { Beat } from './system/beat.ts';
import { keepMemoryTrimmed } from './system/trim-memory.ts';
import { refuseRemoved } from './disks/removed-host.ts';
import { sweepDeletedDisks } from './disks/sweep-deleted-disks.ts';

interface Parts {
  readonly config: AgentConfig;
  readonly hostId: string;
  readonly directory: Directory;
  readonly host: Host;
  readonly clusterTls: ClusterTls;
  readonly isDraining: () => boolean;
  readonly orders: HostOrders;
  readonly beat: Beat;
  readonly log: Logger;
}

/**
 * Tells the directory of this host from now on, and links it to the control nodes that there are.
 */
function linkToControl(parts: Parts) {
  const { config, hostId, host, clusterTls, isDraining, orders, log } = parts;
  const { clusterId, clusterSecrets, region } = config.cluster;
  const { disks, execs, storage, sandboxes } = host;
  const connectionKeys = new ConnectionKeys({ hostId, region });
  const cutOff = new AppError('outcome_unknown', 'the host was cut off from every control node');
  const links = new ControlLinks({
    hostId,
    clusterId,
    clusterSecrets,
    clusterTls,
    region,
    publicUrl: config.publicUrl,
    internalUrl: config.internalUrl,
    ...(host.image === undefined ? {} : { image: host.image }),
    sandboxRuntime: config.sandboxes?.runtime.kind,
    connectionKeys,
    log,
    load: () => ({
      execSlots: config.execSlots,
      execsRunning: execs.running,
      execsWaiting: execs.waiting,
      storageLow: storage.isLow || storage.problem !== undefined,
      images: host.images.load,
      sandboxes: sandboxes === undefined ? NO_SANDBOXES : { isEnabled: true, ...sandboxes.load },
      cordoned: orders.isCordoned,
      draining: isDraining(),
    }),
    onCutOff: () => runInBackground('disk.giveUp', () => disks.closeAll(cutOff)),
    onCancel: (jobId) => execs.cancel(jobId),
  });
  links.start();
  const hostBeat = new HostBeat({
    ...parts,
    onOrder: () => links.sendLoad(),
    onNodes: (nodes) => links.linkTo(nodes),
  });
  hostBeat.start();
  return { links, hostBeat, connectionKeys };
}

function openGateway(
  { config, hostId, directory, host, log }: Parts,
  { forwarder, remote }: { forwarder: RequestForwarder; remote: RemoteObjects },
  durations: ObjectDurations,
): ObjectGateway {
  const { encryptionKeys } = config.cluster;
  const authenticator = new Authenticator(directory.apiKeys);
  const tokens = new DiskTokens(encryptionKeys);
  const principals = { disks: directory.disks, authenticator, tokens };
  const { disks: diskRegistry, storage } = host;
  const parts = { hostId, directory, principals, diskRegistry, storage };
  const { permits, public: outside } = config.http;
  const { trustedProxies } = config.http;
  const limits = {
    requestsMax: permits.objectRequests,
    proxies: outside.proxies,
    trustedProxies,
  };
  return new ObjectGateway({ ...parts, ...limits, forwarder, remote, durations, log });
}

function jobProcessors(
  { disks, execs, storage, sandboxes }: Host,
  imageBuilds: ImageBuilds,
): JobProcessors<JobKind> {
  return {
    ...commandJobs(execs, storage),
    ...diskJobs(disks, storage),
    ...imageJobs(imageBuilds),
    ...(sandboxes === undefined ? noSandboxJobs : sandboxJobs(sandboxes)),
  };
}

async function openImageBuilds({ hostId, directory, host, log }: Parts): Promise<ImageBuilds> {
  const { images } = host;
  const builds = new ImageBuilds({ hostId, images, directory: directory.images, log });
  await builds.endFormer();
  return builds;
}

const openWorker = (
  { config, hostId, host, log }: Parts,
  imageBuilds: ImageBuilds,
  links: ControlLinks,
  { jobDurations, jobWaits }: Pick<JobWorkerDeps, 'jobDurations' | 'jobWaits'>,
): JobWorker =>
  new JobWorker({
    ...{ hostId, links, log, jobDurations, jobWaits },
    redis: config.cluster.redis,
    seal: new JobSeal(config.cluster.clusterSecrets),
    execSlots: config.execSlots,
    processors: jobProcessors(host, imageBuilds),
  });

const openPublicServer = (
  http: Pick<HttpServerOptions, 'host' | 'log' | 'metrics' | 'tls'>,
  { config }: Parts,
  objects: ObjectGateway,
): Promise<Server> =>
  startPublicServer(
    {
      ...{ ...http, port: config.port, connections: config.http.public },
      allowedOrigins: config.http.allowedOrigins,
      isCrowded: () => objects.isCrowded,
    },
    (...exchange) => objects.handle(...exchange),
  );

/** @returns a function that throws AppError `not_found` */
const sandboxFinder =
  ({ sandboxes }: Host): ConnectionServerOptions['find'] =>
  (ref) => {
    if (sandboxes === undefined) throw new AppError('not_found', 'this host runs no sandboxes');
    return sandboxes.registry.find(ref);
  };

function serveConnections(
  publicServer: Server,
  { config, host, log }: Parts,
  keys: ConnectionKeys,
  gauge: Gauge,
): ConnectionServer {
  const find = sandboxFinder(host);
  const countChanged = (count: number): void => gauge.set(count);
  const { allowedOrigins } = config.http;
  const connections = new ConnectionServer({ keys, allowedOrigins, find, countChanged, log });
  connections.serve(publicServer);
  return connections;
}

/** The public server behind the hostnames of ports, if this host has one, and the tunnels to it. */
async function openIngress(
  { config, hostId, directory, host: { sandboxes }, log }: Parts,
  metrics: IngressMetrics,
): Promise<Ingress> {
  const { clusterSecrets, region, redis, tls: clusterTls, log: logSettings } = config.cluster;
  const registry = sandboxes?.registry;
  const { hosts } = directory;
  const ingress = new Ingress({ hostId, clusterSecrets, hosts, registry, metrics, log });
  if (config.ingress === undefined) return ingress;
  const { threads, ...settings } = config.ingress;
  const { ingress: connections, trustedProxies } = config.http;
  const shared = { connections, trustedProxies, hostId, region, redis, clusterTls };
  await ingress.listen({ ...settings, ...shared, log: logSettings }, threads);
  log.info({ port: settings.port, zone: settings.zone, threads }, 'ingress:listening');
  return ingress;
}

/**
 * Paths that the internal port serves besides the operator's: requests of control and other hosts.
 */
const internalRoutes =
  (
    gate: PartRequestGate,
    links: ControlLinks,
    { data, files, objects }: { data: DataEndpoint; files: FilesEndpoint; objects: ObjectGateway },
  ) =>
  (path: string): RequestListener | undefined => {
    if (path === LINK_REQUEST_PATH) {
      return gate.admitting('link-request', (_request, response, claims) =>
        runInBackground('link.open', () => answerLinkRequest(links, response, claims)),
      );
    }
    if (path === DATA_PATH) return gate.admitting('agent-data', (...all) => data.handle(...all));
    if (path === FILES_PATH) {
      return gate.admitting('sandbox-files', (...all) => files.handle(...all));
    }
    if (!path.startsWith('/dsk-')) return undefined;
    return gate.admitting('object-forward', (...all) => objects.handleForwarded(...all));
  };

const problemOf = ({ storage, sandboxes }: Host): string | undefined =>
  storage.problem ?? sandboxes?.storage.problem;

/** Why the agent is not ready, or undefined when it is. */
function whyNotReady(
  draining: boolean,
  storageProblem: string | undefined,
  isConnected: boolean,
): string | undefined {
  if (draining) return 'draining';
  if (storageProblem !== undefined) return storageProblem;
  return isConnected ? undefined : 'not registered with any control node';
}

/** Connects to Redis, and finds the cluster's addresses, which guests must not reach. */
async function openCluster(config: AgentConfig, hostId: string, log: Logger) {
  const { cluster } = config;
  const warn = ({ message: err }: Error): void => log.warn({ err }, 'redis:error');
  const { redis, confirmation, close } = await openRedis(cluster, warn);
  const directory = openDirectory(redis, cluster.region, confirmation);
  await refuseRemoved({ hostId, config, directory, log });
  const addresses = clusterAddresses(redisNames(redis, cluster.redis), directory, log);
  return { redis, directory, addresses, closeRedis: close };
}

const openNodeCertificates = async ({ cluster, tls }: AgentConfig, log: Logger) => ({
  clusterTls: await openCertificates(cluster.tls, log),
  tls: await openCertificates(tls, log),
});

async function endHost(host: Host, worker: JobWorker, builds: ImageBuilds): Promise<void> {
  const idle = worker.close();
  await builds.close();
  await host.close();
  await settledWithin(idle, LIMITS.queueCloseMs); // BullMQ waits for a Redis that is away.
}

async function start(config: AgentConfig): Promise<void> {
  const { hostId, release } = await claimHost(config.dataDir);
  const log = await observe(config, 'agent', { hostId });
  const { redis, directory, addresses, closeRedis } = await openCluster(config, hostId, log);
  const { clusterTls, tls } = await openNodeCertificates(config, log);
  const auth = { clusterSecrets: config.cluster.clusterSecrets, clusterTls };
  const metrics = createAgentMetrics(() => host);
  ownProcessFaults(log, metrics.registry);
  const beat = new Beat();
  const started = { ...metrics, beat, log, clusterAddresses: addresses };
  const host: Host = await openHost(config, directory, hostId, started);
  const { disks, sandboxes } = host;

  let draining = false;
  const isDraining = (): boolean => draining;
  const orders = await HostOrders.open({ config, hostId, directory, host, log });
  const parts = { config, hostId, directory, host, clusterTls, isDraining, orders, beat, log };
  const { links, hostBeat, connectionKeys } = linkToControl(parts);
  const imageBuilds = await openImageBuilds(parts);
  const worker = openWorker(parts, imageBuilds, links, metrics);
  createClusterGauges(metrics.registry, { redis, ...directory, worker, links });
  const data = new DataEndpoint({ disks, downloadsMax: config.http.permits.downloads, log });
  const files = new FilesEndpoint({ find: sandboxFinder(host), log });
  const gate = new PartRequestGate({ clusterSecrets: auth.clusterSecrets, hostId, log });
  const forwarder = new RequestForwarder(auth);
  const remote = new RemoteObjects(auth);
  const objects = openGateway(parts, { forwarder, remote }, metrics.objectDurations);
  const http = { host: config.host, log, metrics: createHttpMetrics(metrics.registry) };
  const ingress = await openIngress(parts, metrics.ingress);
  const ops = await startOpsServer({
    http: { ...http, port: config.adminPort, connections: config.http.internal, tls: clusterTls },
    registry: metrics.registry,
    find: internalRoutes(gate, links, { data, files, objects }),
    ready: async () => whyNotReady(isDraining(), problemOf(host), links.isConnected),
  });
  const stopSweeping = sweepDeletedDisks({ hostId, files: host.files, directory, disks, log });
  const publicServer = await openPublicServer({ ...http, tls }, parts, objects);
  const connections = serveConnections(publicServer, parts, connectionKeys, metrics.connections);
  ingress.tunnels.serve(ops);
  hostBeat.announce(config.internalUrl);
  keepMemoryTrimmed(beat);
  log.info({ port: config.port, adminPort: config.adminPort }, 'agent:ready');

  onShutdown(log, LIMITS.shutdownMs + SANDBOX_LIMITS.sandboxStopAllMs, [
    async (signal) => {
      draining = true;
      stopSweeping();
      links.sendLoad();
      worker.drain();
      connections.close();
      // Before the sandboxes stop: no request wakes them again.
      const ingressClosed = ingress.close();
      if (signal === 'SIGPWR') await sandboxes?.stopAll();
      // Until they have ended new work is still taken from the queue, to be refused at once.
      const drained = Promise.all([
        host.drain().then(() => worker.close()),
        data.drain(),
        files.drain(),
        objects.drain(),
        ingressClosed,
      ]);
      await settledWithin(drained, LIMITS.drainMs);
      await endHost(host, worker, imageBuilds);
    },
    () => hostBeat.close(),
    () => links.close(),
    () => publicServer.close(),
    () => forwarder.close(),
    () => remote.close(),
    () => ops.close(),
    () => release(),
    () => closeRedis(),
  ]);
}

runService({ name: 'agent', read: readAgentConfig, check: checkAgentConfig, start });
