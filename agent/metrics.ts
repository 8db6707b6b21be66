import {
  Counter,
  createMetrics,
  DURATION_BUCKETS,
  Gauge,
  Histogram,
  type Registry,
} from '../shared/metrics.ts';
import type { Host } from './host.ts';
import type { IngressMetrics } from './ingress/ingress.ts';
import type { JobDurations, JobWaits } from './jobs/job-worker.ts';
import type { ObjectDurations } from './objects/object-gateway.ts';
import { overduePrograms } from './system/spawn.ts';
import { type ObserveStart, startPhases } from './sandboxes/start-clock.ts';

/**
 * The agent's own figures beside those of every process.
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
  sessions: Gauge;
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
  const sessions = new Gauge({
    name: 'berth_sessions',
    help: 'WebSockets of process sessions that are open',
    registers: [registry],
  });
  createStorageGauges(registry, host);
  const observeStart = createStartMetrics(registry);
  createSandboxGauges(registry, () => host().sandboxes);
  return { registry, jobDurations, jobWaits, objectDurations, observeStart, sessions, ingress };
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
      for (const state of sandboxes()?.states ?? []) count.inc({ state });
    },
  });
  const capacity: Gauge<'resource' | 'part'> = new Gauge({
    name: 'berth_sandbox_capacity',
    help: 'What running sandboxes may use of this host, and what they use',
    labelNames: ['resource', 'part'] as const,
    registers: [registry],
    collect() {
      const load = sandboxes()?.load;
      if (load === undefined) return;
      capacity.set({ resource: 'memory_mib', part: 'total' }, load.memoryMib);
      capacity.set({ resource: 'memory_mib', part: 'used' }, load.memoryMibUsed);
      capacity.set({ resource: 'vcpus', part: 'total' }, load.vcpus);
      capacity.set({ resource: 'vcpus', part: 'used' }, load.vcpusUsed);
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
