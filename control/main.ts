import type { Server } from 'node:http';
import type { Redis } from 'ioredis';
import { openDirectory } from '../shared/directory/directory.ts';
import { connectRedis } from '../shared/directory/redis.ts';
import { toError } from '../shared/errors.ts';
import { newNodeId } from '../shared/ids.ts';
import { ConnectionSigner } from '../shared/links/connection-token.ts';
import { RequestForwarder } from '../shared/links/forward-request.ts';
import { createHttpMetrics } from '../shared/http/http-server.ts';
import { LIMITS } from '../shared/limits.ts';
import { JobSeal } from '../shared/jobs/job-seal.ts';
import { createLogger } from '../shared/log.ts';
import { createMetrics, DURATION_BUCKETS, Histogram, type Registry } from '../shared/metrics.ts';
import { startOpsServer } from '../shared/http/ops-server.ts';
import { ownProcessFaults } from '../shared/process-faults.ts';
import { settledWithin } from '../shared/settled-within.ts';
import { onShutdown } from '../shared/shutdown.ts';
import { AgentHub, LINK_PATH } from './dispatch/agent-hub.ts';
import { announceNode } from './dispatch/announce-node.ts';
import { createApp } from './app.ts';
import { readControlConfig } from './config.ts';
import { DirectorySpace } from './dispatch/directory-space.ts';
import { DataProxy } from './dispatch/data-proxy.ts';
import { FilesProxy } from './dispatch/files-proxy.ts';
import { JobDispatch } from './dispatch/job-dispatch.ts';
import { ObjectProxy } from './dispatch/object-proxy.ts';
import { startPublicServer } from './http/public-server.ts';

async function whyNotReady(redis: Redis): Promise<string | undefined> {
  try {
    await redis.ping();
    return undefined;
  } catch {
    return 'Redis cannot be reached';
  }
}

const createDurations = (registry: Registry): Histogram<'method' | 'route' | 'status'> =>
  new Histogram({
    name: 'berth_request_duration_seconds',
    help: 'Time from a request to its answer',
    labelNames: ['method', 'route', 'status'] as const,
    buckets: DURATION_BUCKETS,
    registers: [registry],
  });

/** Answers the requests that the server has, for a while; then ends their connections. */
async function drain(server: Server): Promise<void> {
  const closed = new Promise((resolve) => {
    server.close(resolve);
  });
  if (!(await settledWithin(closed, LIMITS.drainMs))) server.closeAllConnections();
}

async function main(): Promise<void> {
  const config = readControlConfig(process.env);
  const { cluster } = config;
  const nodeId = newNodeId();
  const log = createLogger('control', { nodeId, region: cluster.region });

  const redis = connectRedis(cluster.redisUrl, (error) =>
    log.warn({ err: error.message }, 'redis:error'),
  );
  await redis.connect();
  const directory = openDirectory(redis, cluster.region);
  const { clusterId, clusterSecret, region } = cluster;
  const connections = new ConnectionSigner(config.signingKeys, region);
  const connectionKeys = connections.publicKeys;
  const hub = new AgentHub({ nodeId, clusterId, clusterSecret, region, connectionKeys, log });
  const { redisDataDir, redisReserveBytes: reserveBytes } = config;
  const { spaceAlert: alert } = directory;
  const directorySpace = new DirectorySpace({ alert, redisDataDir, reserveBytes, log });
  const jobs = new JobDispatch({
    hub,
    nodeId,
    redisUrl: cluster.redisUrl,
    queuedJobs: directory.queuedJobs,
    seal: new JobSeal(clusterSecret),
    log,
  });

  const { places, allowedOrigins, ...limits } = config.http;
  const { proxies } = limits.public;
  const files = new FilesProxy(clusterSecret);
  const data = new DataProxy({ hub, clusterSecret, downloadsMax: places.downloads, proxies });

  const metrics = createMetrics('control');
  ownProcessFaults(log, metrics);
  const durations = createDurations(metrics);
  const ready = (): Promise<string | undefined> => whyNotReady(redis);
  const { host, port, internalPort, internalUrl } = config;
  const http = { host, log, metrics: createHttpMetrics(metrics) };
  const internal = await startOpsServer({
    http: { ...http, port: internalPort, connections: limits.internal },
    registry: metrics,
    ready,
  });
  hub.serve(internal);
  const deps = { nodeId, config, directory, directorySpace, hub, jobs, data, files, connections };
  const app = createApp({ deps, log, durations, ready, allowedOrigins });
  const forwarder = new RequestForwarder(clusterSecret);
  const proxied = { hub, forwarder, allowedOrigins, proxies, durations, log };
  const objects = new ObjectProxy({ ...proxied, requestsMax: places.objectRequests });
  const isCrowded = (): boolean => objects.isCrowded || data.isCrowded;
  const publicHttp = { ...http, port, connections: limits.public, isCrowded };
  const server = await startPublicServer(publicHttp, app.callback(), objects);

  const linkUrl = `${internalUrl.replace(/^http/u, 'ws')}${LINK_PATH}`;
  const announced = announceNode(directory.controlNodes, { nodeId, linkUrl });
  log.info({ port, internalPort, publicBaseUrl: config.publicBaseUrl }, 'control:ready');

  onShutdown(log, LIMITS.shutdownMs, [
    () => announced.leave(),
    () => directorySpace.close(),
    // Requests under way are answered first: their answers come over the agents' links.
    () => drain(server),
    () => announced.withdraw(),
    () => hub.close(),
    () => jobs.close(),
    () => data.close(),
    () => files.close(),
    () => forwarder.close(),
    () => internal.close(),
    () => redis.disconnect(),
  ]);
}

main().catch((error: unknown) => {
  process.stderr.write(`control: ${toError(error).message}\n`);
  process.exit(1);
});
