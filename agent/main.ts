import { openDirectory } from '../shared/directory/directory.ts';
import { connectRedis } from '../shared/directory/redis.ts';
import { AppError, toError } from '../shared/errors.ts';
import { LIMITS } from '../shared/limits.ts';
import { createLogger } from '../shared/log.ts';
import { startOpsServer } from '../shared/ops-server.ts';
import { settledWithin } from '../shared/settled-within.ts';
import { onShutdown } from '../shared/shutdown.ts';
import { readAgentConfig } from './config.ts';
import { ControlLinks } from './control-link.ts';
import { claimHost, openHost } from './host.ts';
import { JobWorker } from './job-worker.ts';
import { createAgentMetrics } from './metrics.ts';
import { startPublicServer } from './public-server.ts';
import { sweepDeletedDisks } from './sweep-deleted-disks.ts';

async function main(): Promise<void> {
  const config = readAgentConfig(process.env);
  const { cluster, execSlots } = config;
  const identity = await claimHost(config.dataDir);
  const { hostId } = identity;
  const log = createLogger('agent', { hostId, region: cluster.region });

  const redis = connectRedis(cluster.redisUrl, (error) =>
    log.warn({ err: error.message }, 'redis:error'),
  );
  await redis.connect();
  const directory = openDirectory(redis, cluster.region);
  const host = await openHost(config, directory, hostId, log);
  const { registry, files, storage } = host;
  const metrics = createAgentMetrics(() => registry.execsRunning);

  let draining = false;
  const links = new ControlLinks({
    hostId,
    clusterId: cluster.clusterId,
    clusterSecret: cluster.clusterSecret,
    region: cluster.region,
    publicUrl: config.publicUrl,
    nodes: directory.controlNodes,
    log,
    load: () => ({
      execSlots,
      execsRunning: registry.execsRunning,
      execsWaiting: registry.execsWaiting,
      storageLow: storage.isLow,
      draining,
    }),
    onCutOff: () =>
      void registry.giveUpDisks(
        new AppError('outcome_unknown', 'the host was cut off from every control node'),
      ),
    onCancel: (jobId) => registry.cancelExec(jobId),
  });
  links.start();
  const { redisUrl } = cluster;
  const { jobDurations } = metrics;
  const deps = {
    hostId,
    redisUrl,
    execSlots,
    directory,
    registry,
    links,
    storage,
    log,
    jobDurations,
  };
  const worker = new JobWorker(deps);
  const ops = await startOpsServer({
    host: config.host,
    port: config.adminPort,
    metrics: metrics.registry,
    ready: async () => {
      if (draining) return 'draining';
      return links.isConnected ? undefined : 'not registered with any control node';
    },
  });
  sweepDeletedDisks(files, directory, registry, log).catch((error: unknown) => {
    log.warn({ err: toError(error) }, 'sweep:failed');
  });
  const publicServer = await startPublicServer(config.host, config.port);
  log.info({ port: config.port, adminPort: config.adminPort }, 'agent:ready');

  onShutdown(log, LIMITS.shutdownMs, [
    () => {
      draining = true;
      registry.drain();
    },
    async () => {
      const idle = worker.close();
      await settledWithin(idle, LIMITS.drainMs);
      await host.close();
      await idle;
    },
    () => links.close(),
    () => void publicServer.close(),
    () => void ops.close(),
    () => identity.release(),
    () => redis.disconnect(),
  ]);
}

main().catch((error: unknown) => {
  process.stderr.write(`agent: ${toError(error).message}\n`);
  process.exit(1);
});
