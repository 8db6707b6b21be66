import type { Server } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import type { RedisClient } from '../shared/directory/redis-client.ts';
import { openDirectory } from '../shared/directory/directory.ts';
import { openRedis } from '../shared/directory/open-redis.ts';
import { newNodeId } from '../shared/ids.ts';
import { ConnectionSigner } from '../shared/links/connection-token.ts';
import { RequestForwarder } from '../shared/links/forward-request.ts';
import { createHttpMetrics } from '../shared/http/http-server.ts';
import { LIMITS } from '../shared/limits.ts';
import { JobSeal } from '../shared/jobs/job-seal.ts';
import { startOpsServer } from '../shared/http/ops-server.ts';
import { ownProcessFaults } from '../shared/process-faults.ts';
import { runService } from '../shared/settings/start-service.ts';
import { settledWithin } from '../shared/settled-within.ts';
import { openCertificates } from '../shared/tls/certificates.ts';
import { observe } from '../shared/tracing/observe.ts';
import { onShutdown } from '../shared/shutdown.ts';
import { AgentHub, LINK_PATH } from './region/agent-hub.ts';
import { announceNode } from './region/announce-node.ts';
import { createApp } from './app.ts';
import { ConsoleSessions } from './site/console/console-sessions.ts';
import { checkControlConfig, type ControlConfig, readControlConfig } from './config.ts';
import { openAccounting } from './accounting.ts';
import { DirectorySpace } from './region/directory-space.ts';
import { DataProxy } from './region/data-proxy.ts';
import { FilesProxy } from './region/files-proxy.ts';
import { HostFinder } from './region/host-finder.ts';
import { JobDispatch } from './region/job-dispatch.ts';
import { LinkShare } from './region/link-share.ts';
import { ObjectProxy } from './region/object-proxy.ts';
import { createControlMetrics } from './metrics.ts';
import { startPublicServer } from './http/public-server.ts';
import { openMcp } from './site/mcp/open-mcp.ts';
import type { ServeApi } from './site/mcp/own-api.ts';

/** The time in which a node that is told to stop serves on, and load balancers take it out. */
class Leaving {
  hasBegun = false;

  async begin(announced: ReturnType<typeof announceNode>, leaveMs: number): Promise<void> {
    this.hasBegun = true;
    await announced.leave();
    await sleep(leaveMs);
  }
}

async function whyNotReady(redis: RedisClient, leaving: Leaving): Promise<string | undefined> {
  if (leaving.hasBegun) return 'this node is about to stop';
  try {
    await redis.ping();
    return undefined;
  } catch {
    return 'Redis cannot be reached';
  }
}

/** Where this node's tools for language models call it: a free port that nobody else can reach. */
const OWN_ADDRESS = { name: 'own', host: '127.0.0.1', port: 0 } as const;

/** Answers the requests that the server has, for a while; then ends their connections. */
async function drain(server: Server): Promise<void> {
  const closed = new Promise((resolve) => {
    server.close(resolve);
  });
  if (!(await settledWithin(closed, LIMITS.drainMs))) server.closeAllConnections();
}

async function start(config: ControlConfig): Promise<void> {
  const { cluster } = config;
  const nodeId = newNodeId();
  const log = await observe(config, 'control', { nodeId });

  const opened = await openRedis(cluster, ({ message: err }) => log.warn({ err }, 'redis:error'));
  const { redis, confirmation } = opened;
  const directory = openDirectory(redis, cluster.region, confirmation);
  const { clusterId, clusterSecrets, region } = cluster;
  const connections = new ConnectionSigner(config.signingKeys, region);
  const clusterTls = await openCertificates(cluster.tls, log);
  const auth = { clusterSecrets, clusterTls };
  const hub = new AgentHub({
    ...{ nodeId, clusterId, clusterSecrets, region, connectionKeys: connections.publicKeys, log },
    ...{ isEncrypted: clusterTls !== undefined, hosts: directory.hosts },
  });
  const { redisDataDir, redisReserveBytes: reserveBytes } = config;
  const { spaceAlert: alert, queuedJobs } = directory;
  const directorySpace = new DirectorySpace({ alert, redisDataDir, reserveBytes, log });
  const queues = { redis: cluster.redis, queuedJobs };
  const jobs = new JobDispatch({ hub, nodeId, ...queues, seal: new JobSeal(clusterSecrets), log });
  const sessions = new ConsoleSessions({ ...config, ended: directory.endedSessions });

  const { permits, allowedOrigins, trustedProxies, ...limits } = config.http;
  const { proxies } = limits.public;
  const files = new FilesProxy(auth);
  const data = new DataProxy({ hub, auth, downloadsMax: permits.downloads, proxies });

  const { registry, durations } = createControlMetrics({ redis, hub, directorySpace });
  ownProcessFaults(log, registry);
  const leaving = new Leaving();
  const ready = (): Promise<string | undefined> => whyNotReady(redis, leaving);
  const { host, port, internalPort, internalUrl } = config;
  const http = { host, log, metrics: createHttpMetrics(registry) };
  const internal = await startOpsServer({
    http: { ...http, port: internalPort, connections: limits.internal, tls: clusterTls },
    ...{ registry, ready },
  });
  hub.serve(internal);
  const accounting = openAccounting(config, directory, log);
  const node = { nodeId, linkUrl: `${internalUrl.replace(/^http/u, 'ws')}${LINK_PATH}` };
  const share = new LinkShare(config.hostsLinkedMax);
  const hosts = new HostFinder({ hub, hosts: directory.hosts, share, node, auth, log });
  const work = { directorySpace, hub, hosts, jobs, data, files, usage: accounting.usage };
  const deps = { nodeId, config, directory, connections, ...work };
  const forwarder = new RequestForwarder(auth);
  const proxied = { hub, forwarder, allowedOrigins, proxies, trustedProxies, durations, log };
  const objects = new ObjectProxy({ ...proxied, requestsMax: permits.objectRequests });
  const isCrowded = (): boolean => objects.isCrowded || data.isCrowded;
  const publicHttp = { ...http, isCrowded, isLeaving: () => leaving.hasBegun };
  const own = { ...publicHttp, ...OWN_ADDRESS, connections: limits.internal };
  const serveOwn: ServeApi = (first) => startPublicServer(own, app.callback(), objects, first);
  const mcp = openMcp({ redis, target: cluster.redis, region, log, serve: serveOwn });
  const { consoleDir, publicBaseUrl } = config;
  const parts = { mcp, sessions, consoleDir, share, confirmation, ...accounting };
  const app = createApp({ deps, log, durations, ready, allowedOrigins, ...parts });
  const tls = await openCertificates(config.tls, log);
  const known = { ...publicHttp, name: 'public', port, tls, connections: limits.public } as const;
  const server = await startPublicServer(known, app.callback(), objects, sessions);

  const announced = announceNode(directory, node, share);
  log.info({ port, internalPort, publicBaseUrl }, 'control:ready');

  onShutdown(log, config.leaveMs + LIMITS.shutdownMs, [
    () => leaving.begin(announced, config.leaveMs),
    () => directorySpace.close(),
    // Requests under way are answered first: their answers come over the agents' links.
    () => drain(server),
    () => mcp.close(),
    () => announced.withdraw(),
    ...[hub, hosts, jobs, data, files, forwarder].map((part) => () => part.close()),
    () => internal.close(),
    () => accounting.close(),
    () => opened.close(),
  ]);
}

runService({ name: 'control', read: readControlConfig, check: checkControlConfig, start });
