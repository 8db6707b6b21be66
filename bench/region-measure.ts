import { setTimeout as sleep } from 'node:timers/promises';
import { quantile, timed } from './statistics.ts';
import { Calls, type CallTimes } from './region-calls.ts';
import { Region, type RegionSize } from './region-parts.ts';
import { processorMs, residentMiB } from './process-usage.ts';

export interface RegionPlan extends RegionSize {
  readonly actionsPerSecond: number;
  /** How long callers call, and how long the region is watched while nobody does. */
  readonly seconds: number;
}

/** Milliseconds of the calls of one kind. */
interface Latency {
  readonly calls: number;
  readonly p50: number;
  readonly p99: number;
}

/** Costs of a region of one size. */
export interface RegionFigures {
  readonly agents: number;
  readonly controls: number;
  /** Hosts that are linked to one control node after the load, on average. */
  readonly linksPerControl: number;
  readonly sandboxes: number;
  readonly disks: number;
  /** From the start of the control nodes, and from their readiness, until they have their hosts. */
  readonly registeredMs: number;
  readonly registeredAfterReadyMs: number;
  readonly latencies: Readonly<Record<CallName, Latency>>;
  readonly actionsPerSecond: number;
  readonly failures: Readonly<Record<string, number>>;
  readonly leftOut: number;
  /** Resident memory of one control node with all hosts linked, and with all sandboxes there. */
  readonly controlMiB: number;
  readonly controlMiBPerThousandSandboxes: number;
  readonly redisMiB: number;
  /** Memory of its keys only. */
  readonly redisMiBPerThousandSandboxes: number;
  /** Processor time while nobody calls, in milliseconds a minute for each agent. */
  readonly controlMsPerAgentMinute: number;
  readonly redisMsPerAgentMinute: number;
  /** Share of one processor, while nobody calls and while callers call. */
  readonly controlShareIdle: number;
  readonly redisShareIdle: number;
  readonly controlShareLoaded: number;
  readonly redisShareLoaded: number;
  readonly redisCommandsPerAgentSecond: number;
  readonly redisReadsPerAgentSecond: number;
  readonly redisConnectionsPerAgent: number;
}

const callNames = ['create', 'get', 'listSandboxes', 'listDisks', 'pause', 'resume'] as const;
type CallName = (typeof callNames)[number];

const latencyOf = (samples: readonly number[]): Latency => ({
  calls: samples.length,
  p50: quantile(samples, 0.5),
  p99: quantile(samples, 0.99),
});

const latenciesOf = (times: CallTimes): RegionFigures['latencies'] => ({
  create: latencyOf(times.create),
  get: latencyOf(times.get),
  listSandboxes: latencyOf(times.listSandboxes),
  listDisks: latencyOf(times.listDisks),
  pause: latencyOf(times.pause),
  resume: latencyOf(times.resume),
});

interface Processors {
  readonly controlMs: number;
  readonly redisMs: number;
  readonly commands: number;
  readonly reads: number;
  readonly tookMs: number;
}

const sum = (values: readonly number[]): number => values.reduce((all, each) => all + each, 0);

/** Processor time of control (all nodes) and Redis while something happens. */
async function whileDoing<T>(
  { controls, redis }: Region,
  work: () => Promise<T>,
): Promise<{ readonly result: T; readonly used: Processors }> {
  const look = async () => ({
    controls: await Promise.all(controls.map(({ daemon }) => processorMs(daemon.pid))),
    redis: await redis.processorMs(),
    ...(await redis.figures()),
  });
  const before = await look();
  const beganAt = performance.now();
  const result = await work();
  const tookMs = performance.now() - beganAt;
  const after = await look();
  return {
    result,
    used: {
      controlMs: sum(after.controls) - sum(before.controls),
      redisMs: after.redis - before.redis,
      commands: after.commands - before.commands,
      reads: after.reads - before.reads,
      tookMs,
    },
  };
}

const memoryOf = async ({ controls, redis }: Region) => ({
  control:
    sum(await Promise.all(controls.map(({ daemon }) => residentMiB(daemon.pid)))) / controls.length,
  redisKeys: await redis.keysMiB(),
});

/** The control nodes are killed and started again. */
async function restartControls(region: Region): Promise<{ allMs: number; afterReadyMs: number }> {
  await region.killControls();
  const readyMs = await timed(() => region.startControls());
  const afterReadyMs = await timed(() => region.untilLinked());
  return { allMs: readyMs + afterReadyMs, afterReadyMs };
}

/** Starts a region of this size, measures it, and ends it. */
export async function measureRegion(
  plan: RegionPlan,
  note: (what: string) => void,
): Promise<RegionFigures> {
  const { agents, actionsPerSecond, seconds } = plan;
  const [sandboxes, disks] = [agents * plan.sandboxesPerAgent, agents * plan.disksPerAgent];
  await using region = await Region.open(plan);
  const calls = new Calls(region);
  note(`${agents} agents: opening them`);
  await region.openHosts();
  const empty = await memoryOf(region);
  note(`${agents} agents: making ${sandboxes} sandboxes and ${disks} disks`);
  const made = await region.populate();
  const full = await memoryOf(region);
  await calls.makeDisks(disks);
  note(`${agents} agents: restarting control`);
  const restarted = await restartControls(region);
  // Control has just been started: its first seconds cost more than rest does.
  await sleep(seconds * 500);
  note(`${agents} agents: nobody calls, then ${actionsPerSecond} actions a second`);
  const idle = (await whileDoing(region, () => sleep(seconds * 1000))).used;
  const atRest = await region.redis.figures();
  const { result: times, used } = await whileDoing(region, () =>
    calls.load(made, { actionsPerSecond, seconds }),
  );
  const linksPerControl = await region.linksPerControl();
  const perAgentMinute = (ms: number): number => (ms / agents) * (60_000 / idle.tookMs);
  return {
    ...{ agents, sandboxes, disks, linksPerControl, controls: plan.controls },
    registeredMs: restarted.allMs,
    registeredAfterReadyMs: restarted.afterReadyMs,
    latencies: latenciesOf(times),
    actionsPerSecond: ((times.pause.length + times.resume.length) * 1000) / used.tookMs,
    failures: Object.fromEntries(times.failures),
    leftOut: times.leftOut,
    controlMiB: full.control,
    controlMiBPerThousandSandboxes: ((full.control - empty.control) * 1000) / sandboxes,
    redisMiB: atRest.usedMiB,
    redisMiBPerThousandSandboxes: ((full.redisKeys - empty.redisKeys) * 1000) / sandboxes,
    controlMsPerAgentMinute: perAgentMinute(idle.controlMs),
    redisMsPerAgentMinute: perAgentMinute(idle.redisMs),
    controlShareIdle: idle.controlMs / idle.tookMs,
    redisShareIdle: idle.redisMs / idle.tookMs,
    controlShareLoaded: used.controlMs / used.tookMs,
    redisShareLoaded: used.redisMs / used.tookMs,
    redisCommandsPerAgentSecond: (idle.commands * 1000) / idle.tookMs / agents,
    redisReadsPerAgentSecond: (idle.reads * 1000) / idle.tookMs / agents,
    redisConnectionsPerAgent: atRest.clients / agents,
  };
}
