import {
  createMetrics,
  DURATION_BUCKETS,
  Gauge,
  Histogram,
  type Registry,
} from '../shared/metrics.ts';

export type JobDurations = Histogram<'kind' | 'outcome'>;
export type ObjectDurations = Histogram<'operation' | 'status'>;

/** The agent's own figures beside those of every process. */
export function createAgentMetrics(execsRunning: () => number): {
  registry: Registry;
  jobDurations: JobDurations;
  objectDurations: ObjectDurations;
} {
  const registry = createMetrics('agent');
  const jobDurations = new Histogram({
    name: 'berth_job_duration_seconds',
    help: 'Time from taking a job to its answer',
    labelNames: ['kind', 'outcome'] as const,
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
  const running: Gauge = new Gauge({
    name: 'berth_execs_running',
    help: 'Commands that run now',
    registers: [registry],
    collect: () => running.set(execsRunning()),
  });
  return { registry, jobDurations, objectDurations };
}
