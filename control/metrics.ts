import type { RedisClient } from '../shared/directory/redis-client.ts';
import {
  createMetrics,
  createRedisMetrics,
  DURATION_BUCKETS,
  Gauge,
  Histogram,
  type Registry,
} from '../shared/metrics.ts';
import type { AgentHub } from './region/agent-hub.ts';
import type { DirectorySpace } from './region/directory-space.ts';

/** Duration of requests by method, route pattern and status. */
export type RequestDurations = Histogram<'method' | 'route' | 'status'>;

/** The control node's own figures besides those of every process. */
export function createControlMetrics({
  redis,
  hub,
  directorySpace,
}: {
  readonly redis: RedisClient;
  readonly hub: Pick<AgentHub, 'linkedCount' | 'drainingCount' | 'waiters'>;
  readonly directorySpace: Pick<DirectorySpace, 'freeBytes' | 'reserveBytes'>;
}): { readonly registry: Registry; readonly durations: RequestDurations } {
  const registry = createMetrics('control');
  createRedisMetrics(registry, redis);
  const durations = new Histogram({
    name: 'berth_request_duration_seconds',
    help: 'Time from a request to its answer',
    labelNames: ['method', 'route', 'status'] as const,
    buckets: DURATION_BUCKETS,
    registers: [registry],
  });
  createHostGauges(registry, hub);
  createSpaceGauges(registry, directorySpace);
  return { registry, durations };
}

function createHostGauges(
  registry: Registry,
  hub: Pick<AgentHub, 'linkedCount' | 'drainingCount' | 'waiters'>,
): void {
  const hosts: Gauge<'state'> = new Gauge({
    name: 'berth_linked_hosts',
    help: 'Hosts that are linked to this node',
    labelNames: ['state'] as const,
    registers: [registry],
    collect() {
      const { linkedCount, drainingCount } = hub;
      hosts.set({ state: 'ready' }, linkedCount - drainingCount);
      hosts.set({ state: 'draining' }, drainingCount);
    },
  });
  const jobs: Gauge = new Gauge({
    name: 'berth_pending_jobs',
    help: 'Jobs that this node has given to hosts and that are not answered',
    registers: [registry],
    collect: () => jobs.set(hub.waiters.size),
  });
}

/** Created only on a node that sees the file system of Redis. */
function createSpaceGauges(
  registry: Registry,
  space: Pick<DirectorySpace, 'freeBytes' | 'reserveBytes'>,
): void {
  if (space.freeBytes === undefined) return;
  const free: Gauge = new Gauge({
    name: 'berth_directory_free_bytes',
    help: 'Free space where Redis keeps its files',
    registers: [registry],
    collect: () => free.set(space.freeBytes ?? 0),
  });
  const reserve: Gauge = new Gauge({
    name: 'berth_directory_reserve_bytes',
    help: 'With less free space than this, new work is refused',
    registers: [registry],
    collect: () => reserve.set(space.reserveBytes),
  });
}
