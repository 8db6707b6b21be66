import type { RedisClient } from '../shared/directory/redis-client.ts';
import type { QueuedJobs } from '../shared/directory/queued-jobs.ts';
import {
  Counter,
  createMetrics,
  createRedisMetrics,
  DURATION_BUCKETS,
  Gauge,
  Histogram,
  measuredOnce,
  type Registry,
} from '../shared/metrics.ts';
import { MiB } from '../shared/units.ts';
import type { Host } from './host.ts';
import type { IngressMetrics } from './edge/ingress/ingress.ts';
import type { JobDurations, JobWaits, JobWorker } from './control-link/job-worker.ts';
import type { ControlLinks } from './control-link/control-link.ts';
import type { ObjectDurations } from './edge/s3/object-gateway.ts';
import { overduePrograms } from './system/spawn.ts';
import { type ObserveStart, startPhases } from './sandboxes/lifecycle/start-clock.ts';

/**
 * The agent's own figures besides those of every process.
 * @param host asked when figures are, which is once it is open
 */
export function createAgentMetrics(
  host: () => Pick<Host, 'disks' | 'execs' | 'sandboxes' | 'storage'>,
): {
  registry: Registry;
  jobDurations: JobDurations;
  jobWaits: JobWaits;
  objectDurations: ObjectDurations;
  observeStart: ObserveStart;
  connections: Gauge;
  ingress: IngressMetrics;
} {
  const registry = createMetrics('agent');
  const jobDurations = new Histogram({
    name: 'berth_job_duration_seconds',
    help: 'Time from taking a job to its answer',
    labelNames: ['kind', 'outcome'] as const,
    buckets: DURATION_BUCKETS,
    registers: [registry],
  });
  const jobWaits = new Histogram({
    name: 'berth_job_wait_seconds',
    help: 'Time from the queueing of a job to its taking, by the clocks of both hosts',
    labelNames: ['kind'] as const,
    buckets: DURATION_BUCKETS,
    registers: [registry],
  });
  const objectDurations = new Histogram({
    name: 'berth_object_request_duration_seconds',
    help: 'Time from a request of the object API to the end of its answer',
    labelNames: ['operation', 'status'] as const,
    buckets: DURATION_BUCKETS,
    registers: [registry],
  });
  const ingress: IngressMetrics = {
    connections: new Gauge({
      name: 'berth_ingress_connections',
      help: 'Connections of callers to the ingress that are open',
      registers: [registry],
    }),
    answers: new Counter({
      name: 'berth_ingress_answers_total',
      help: 'Answers of the ingress, those of sandboxes and its own',
      labelNames: ['status'] as const,
      registers: [registry],
    }),
  };
  const running: Gauge = new Gauge({
    name: 'berth_execs_running',
    help: 'Commands that run now',
    registers: [registry],
    collect: () => running.set(host().execs.running),
  });
  const connections = new Gauge({
    name: 'berth_sessions',
    help: 'WebSockets of process sessions that are open',
    registers: [registry],
  });
  createStorageGauges(registry, host);
  const observeStart = createStartMetrics(registry);
  createSandboxGauges(registry, () => host().sandboxes);
  return { registry, jobDurations, jobWaits, objectDurations, observeStart, connections, ingress };
}

function createStorageGauges(
  registry: Registry,
  host: () => Pick<Host, 'disks' | 'storage'>,
): void {
  const free: Gauge = new Gauge({
    name: 'berth_storage_free_bytes',
    help: 'Room on the file system of the storage or of the agent, whichever has less',
    registers: [registry],
    collect: () => free.set(host().storage.freeBytes),
  });
  const reserve: Gauge = new Gauge({
    name: 'berth_storage_reserve_bytes',
    help: 'With less room than this, new work is refused',
    registers: [registry],
    collect: () => reserve.set(host().storage.reserveBytes),
  });
  const disks: Gauge = new Gauge({
    name: 'berth_disks_set_aside',
    help: 'Disks that are refused since their storage does not answer',
    registers: [registry],
    collect: () => disks.set(host().disks.setAside),
  });
  const programs: Gauge = new Gauge({
    name: 'berth_programs_overdue',
    help: 'Programs of the host that were killed and hang in the kernel all the same',
    registers: [registry],
    collect: () => programs.set(overduePrograms()),
  });
}

function createSandboxGauges(registry: Registry, sandboxes: () => Host['sandboxes']): void {
  const count: Gauge<'state'> = new Gauge({
    name: 'berth_sandboxes',
    help: 'Sandboxes of this host',
    labelNames: ['state'] as const,
    registers: [registry],
    collect() {
      count.reset(); // Drops the states that no sandbox is in any more.
      for (const state of sandboxes()?.states.values() ?? []) count.inc({ state });
    },
  });
  const accelerator: Gauge<'accelerator' | 'reason'> = new Gauge({
    name: 'berth_sandbox_accelerator',
    help: 'How new virtual machines run, and why: 1 for the present choice',
    labelNames: ['accelerator', 'reason'] as const,
    registers: [registry],
    collect() {
      accelerator.reset();
      const choice = sandboxes()?.accelerator();
      if (choice !== undefined) accelerator.set({ ...choice }, 1);
    },
  });
  const memory: Gauge<'part'> = new Gauge({
    name: 'berth_sandbox_capacity_memory_bytes',
    help: 'Memory that running sandboxes may take of this host together, and what is given to them',
    labelNames: ['part'] as const,
    registers: [registry],
    collect() {
      const load = sandboxes()?.load;
      if (load === undefined) return;
      memory.set({ part: 'total' }, load.memoryMib * MiB);
      memory.set({ part: 'used' }, load.memoryMibUsed * MiB);
    },
  });
  const vcpus: Gauge<'part'> = new Gauge({
    name: 'berth_sandbox_capacity_vcpus',
    help: 'Processors that running sandboxes may have of this host together, and those they have',
    labelNames: ['part'] as const,
    registers: [registry],
    collect() {
      const load = sandboxes()?.load;
      if (load === undefined) return;
      vcpus.set({ part: 'total' }, load.vcpus);
      vcpus.set({ part: 'used' }, load.vcpusUsed);
    },
  });
  createMovingGauge(registry, sandboxes);
  createUsageMetrics(registry, sandboxes);
}

function createMovingGauge(registry: Registry, sandboxes: () => Host['sandboxes']): void {
  const failing: Gauge<'step'> = new Gauge({
    name: 'berth_sandbox_takeovers_failing',
    help: 'Sandboxes of other hosts that this one has taken and could not go on with, or not start, and those of a drained host that no other one takes; all are tried again',
    labelNames: ['step'] as const,
    registers: [registry],
    collect() {
      for (const [step, count] of Object.entries(sandboxes()?.failing ?? {}))
        failing.set({ step }, count);
    },
  });
}

const usageMetrics = [
  {
    kind: Counter,
    name: 'berth_sandbox_cpu_seconds_total',
    help: 'Processor time of a sandbox since it was started or resumed last',
    field: 'cpuSeconds',
  },
  {
    kind: Gauge,
    name: 'berth_sandbox_memory_bytes',
    help: 'Memory of the host that a sandbox holds, without cache that could be given back',
    field: 'memoryBytes',
  },
  {
    kind: Gauge,
    name: 'berth_sandbox_stored_bytes',
    help: 'Storage that disk and checkpoint of a sandbox take',
    field: 'storedBytes',
  },
  {
    kind: Counter,
    name: 'berth_sandbox_network_received_bytes_total',
    help: 'Bytes that came to a sandbox since it was started or resumed last',
    field: 'receivedBytes',
  },
  {
    kind: Counter,
    name: 'berth_sandbox_network_sent_bytes_total',
    help: 'Bytes that a sandbox has sent since it was started or resumed last',
    field: 'sentBytes',
  },
] as const;

/**
 * The usage of each running sandbox; measured once for all of them whenever figures are asked for.
 */
function createUsageMetrics(registry: Registry, sandboxes: () => Host['sandboxes']): void {
  const measure = measuredOnce(async () => (await sandboxes()?.registry.usages()) ?? []);
  for (const { kind: Kind, name, help, field } of usageMetrics) {
    const metric: Counter<'sandbox_id'> | Gauge<'sandbox_id'> = new Kind({
      ...{ name, help, registers: [registry] },
      labelNames: ['sandbox_id'] as const,
      async collect() {
        const usages = await measure();
        metric.reset(); // Sandboxes that run no more are left out.
        for (const { sandboxId, usage } of usages) {
          const value = usage[field];
          if (value !== undefined) metric.inc({ sandbox_id: sandboxId }, value);
        }
      },
    });
  }
}

/** How the host is connected to the rest of the cluster. */
export function createClusterGauges(
  registry: Registry,
  {
    redis,
    queuedJobs,
    worker,
    links,
  }: {
    readonly redis: RedisClient;
    readonly queuedJobs: QueuedJobs;
    readonly worker: Pick<JobWorker, 'queues'>;
    readonly links: Pick<ControlLinks, 'registeredCount'>;
  },
): void {
  createRedisMetrics(registry, redis);
  const linked: Gauge = new Gauge({
    name: 'berth_control_links',
    help: 'Control nodes that this host is registered with',
    registers: [registry],
    collect: () => linked.set(links.registeredCount),
  });
  createQueueGauges(registry, queuedJobs, worker);
}

function createQueueGauges(
  registry: Registry,
  queuedJobs: QueuedJobs,
  worker: Pick<JobWorker, 'queues'>,
): void {
  // Without Redis nothing is known: the figures are missing then.
  const measure = measuredOnce(async () => {
    const queues = Object.entries(worker.queues);
    const asked = queues.map(async ([queue, bull]) => {
      const waiting = await queuedJobs.waiting(bull).catch(() => undefined);
      return waiting === undefined ? [] : [{ queue, ...waiting }];
    });
    return (await Promise.all(asked)).flat();
  });
  const labels = { labelNames: ['queue'] as const, registers: [registry] };
  const depths: Gauge<'queue'> = new Gauge({
    ...labels,
    name: 'berth_queue_jobs',
    help: 'Jobs that wait in a queue of this host and were not taken',
    async collect() {
      const waiting = await measure();
      depths.reset();
      for (const { queue, count } of waiting) depths.set({ queue }, count);
    },
  });
  const ages: Gauge<'queue'> = new Gauge({
    ...labels,
    name: 'berth_queue_oldest_job_seconds',
    help: 'How long the oldest job waits that was not taken from a queue of this host; 0: none does',
    async collect() {
      const waiting = await measure();
      ages.reset();
      for (const { queue, oldestAt = Date.now() } of waiting) {
        ages.set({ queue }, Math.max(0, Date.now() - oldestAt) / 1000);
      }
    },
  });
}

function createStartMetrics(registry: Registry): ObserveStart {
  const durations = new Histogram({
    name: 'berth_sandbox_start_seconds',
    help: 'Parts of the time from the taking of a job to a sandbox that runs',
    labelNames: ['origin', 'phase'] as const,
    buckets: DURATION_BUCKETS,
    registers: [registry],
  });
  return (origin, times) => {
    for (const phase of startPhases) {
      durations.observe({ origin, phase }, (times[phase] ?? 0) / 1000);
    }
  };
}
