import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { type Directory, openDirectory } from '../shared/directory/directory.ts';
import { connectRedis } from '../shared/directory/redis.ts';
import { errnoOf, toError } from '../shared/errors.ts';
import { newHostId } from '../shared/ids.ts';
import { LIMITS } from '../shared/limits.ts';
import { createLogger, type Logger } from '../shared/log.ts';
import { createMetrics, DURATION_BUCKETS, Gauge, Histogram } from '../shared/metrics.ts';
import { startOpsServer } from '../shared/ops-server.ts';
import { onShutdown } from '../shared/shutdown.ts';
import { ActorRegistry } from './actors/registry.ts';
import { type AgentConfig, paths, readAgentConfig } from './config.ts';
import { ControlLinks } from './control-link.ts';
import { DiskFiles } from './disks/disk-files.ts';
import { JobWorker } from './job-worker.ts';
import { holdLock, Journal } from './journal/journal.ts';
import { startPublicServer } from './public-server.ts';
import { reclaim } from './reclaim.ts';
import { CAPABILITIES } from './runtimes/container/bundle.ts';
import { detectCgroups } from './runtimes/container/cgroup.ts';
import { readSeccomp } from './runtimes/container/seccomp.ts';

/** The host's id: made once, kept with its data. */
async function readHostId(path: string): Promise<string> {
  try {
    return (await readFile(path, 'utf8')).trim();
  } catch (error) {
    if (errnoOf(error) !== 'ENOENT') throw error;
    const id = newHostId();
    await writeFile(path, `${id}\n`, { flag: 'wx', flush: true });
    return id;
  }
}

async function openHost(config: AgentConfig, directory: Directory, hostId: string, log: Logger) {
  const { dataDir } = config;
  const journal = await Journal.open(paths.journal(dataDir));
  const cgroups = await detectCgroups();
  await reclaim(config, cgroups, journal, log);
  const files = new DiskFiles(config.storageDir, config.diskSizeBytes);
  await files.prepare();
  const containers = {
    containersDir: paths.containers(dataDir),
    runcRoot: paths.runcRoot(dataDir),
    imageDir: config.defaultImageDir,
    mountAliases: config.mountAliases,
    limits: config.execLimits,
    cgroups,
    cgroupParent: config.cgroupParent,
    seccomp: await readSeccomp(config.seccompProfile, CAPABILITIES),
  };
  const registry = new ActorRegistry(
    { hostId, dataDir, directory, files, log },
    { journal, containers, log },
  );
  return { journal, registry };
}

async function main(): Promise<void> {
  const config = readAgentConfig(process.env);
  const { cluster, dataDir } = config;
  await mkdir(dataDir, { recursive: true, mode: 0o700 });
  const releaseLock = await holdLock(paths.lock(dataDir));
  const hostId = await readHostId(paths.hostId(dataDir));
  const log = createLogger('agent', { hostId, region: cluster.region });

  const redis = connectRedis(cluster.redisUrl, (error) =>
    log.warn({ err: error.message }, 'redis:error'),
  );
  await redis.connect();
  const directory = openDirectory(redis, cluster.region);
  const { journal, registry } = await openHost(config, directory, hostId, log);

  const metrics = createMetrics('agent');
  const durations = new Histogram({
    name: 'berth_job_duration_seconds',
    help: 'Time from taking a job to its answer',
    labelNames: ['kind', 'outcome'] as const,
    buckets: DURATION_BUCKETS,
    registers: [metrics],
  });
  new Gauge({
    name: 'berth_execs_running',
    help: 'Commands that run now',
    registers: [metrics],
    collect() {
      this.set(registry.execsRunning);
    },
  });

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
      execSlots: config.execSlots,
      execsRunning: registry.execsRunning,
      draining,
    }),
    onCancel: (jobId) => registry.cancelExec(jobId),
  });
  links.start();
  const worker = new JobWorker({
    hostId,
    redisUrl: cluster.redisUrl,
    execSlots: config.execSlots,
    directory,
    registry,
    links,
    log,
    durations,
  });
  const ops = await startOpsServer({
    host: config.host,
    port: config.adminPort,
    metrics,
    ready: async () => {
      if (draining) return 'draining';
      return links.isConnected ? undefined : 'not registered with any control node';
    },
  });
  const publicServer = await startPublicServer(config.host, config.port);
  log.info({ port: config.port, adminPort: config.adminPort }, 'agent:ready');

  onShutdown(log, LIMITS.shutdownMs, [
    () => {
      draining = true;
    },
    () => worker.close(),
    () => registry.close(),
    () => links.close(),
    () => void publicServer.close(),
    () => void ops.close(),
    () => journal.close(),
    () => releaseLock(),
    () => redis.disconnect(),
  ]);
}

main().catch((error: unknown) => {
  process.stderr.write(`agent: ${toError(error).message}\n`);
  process.exit(1);
});
