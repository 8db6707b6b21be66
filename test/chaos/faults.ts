import { setTimeout as sleep } from 'node:timers/promises';
import type { Stack } from '../helpers/stack.ts';
import type { Findings } from './findings.ts';
import type { Fault, FaultKind } from './plan.ts';
import type { Lifted } from './system.ts';
import {
  childrenOf,
  type ForeignProcess,
  machinesIn,
  nextHelper,
  nfsServersIn,
  signal,
} from './processes.ts';
import type { Relay, Relays } from './relay.ts';
import type { SlowCalls } from './slow-calls.ts';
import type { SmallStorage } from './storage.ts';
import type { Supervisor } from './supervisor.ts';

/** How long a fault waits for a helper program to run. */
const HELPER_WITHIN_MS = 4_000;
/** Delay for an agent whose helper still has work. */
const RESTART_MS = 200;
/** The helper programs that touch disk images. */
const DISK_HELPERS = new Set(['disk', 'mke2fs', 'debugfs']);

/** The parts of a cluster that faults reach (cluster.ts). */
interface FaultyCluster {
  readonly stack: Stack;
  readonly storage: SmallStorage;
  readonly relays: Relays;
  readonly slowCalls: readonly [SlowCalls, SlowCalls];
  readonly control: Supervisor;
  readonly redis: Supervisor;
  readonly agents: readonly [Supervisor, Supervisor];
  readonly supervisors: readonly Supervisor[];
  readonly findings: Findings;
  dataDir(host: 0 | 1): string;
}

type Inject = (cluster: FaultyCluster, fault: Fault) => Promise<Lifted>;

const agentOf = (cluster: FaultyCluster, { host }: Fault): Supervisor =>
  cluster.agents[hostOf(host)];
const hostOf = (host: number): 0 | 1 => (host === 0 ? 0 : 1);

export const pick = <T>(items: readonly T[], { choice }: Fault): T | undefined =>
  items[Math.floor(choice * items.length)];

async function findHelper(cluster: FaultyCluster, fault: Fault) {
  const { daemon } = agentOf(cluster, fault);
  if (!daemon.isRunning) return undefined;
  const names = fault.choice < 0.6 ? DISK_HELPERS : undefined;
  return nextHelper(daemon.pid, HELPER_WITHIN_MS, names);
}

/** Kills the agent while a helper program is frozen, then lets the helper continue. */
async function killAgentInHelper(cluster: FaultyCluster, fault: Fault): Promise<Lifted> {
  const agent = agentOf(cluster, fault);
  const helper = await findHelper(cluster, fault);
  if (helper === undefined) return agent.kill(fault.lastsMs);
  signal(helper, 'SIGSTOP');
  // The helper continues either before the next agent starts or after it has begun to work.
  const goesOnEarly = fault.choice < 0.15;
  const killed = agent.kill(goesOnEarly ? fault.lastsMs : RESTART_MS);
  if (!goesOnEarly) await killed;
  await sleep(goesOnEarly ? fault.lastsMs / 2 : fault.lastsMs);
  signal(helper, 'SIGCONT');
  await killed;
  return performance.now();
}

async function freezeHelper(cluster: FaultyCluster, fault: Fault): Promise<Lifted> {
  const helper = await findHelper(cluster, fault);
  if (helper === undefined || !signal(helper, 'SIGSTOP')) return undefined;
  await sleep(fault.lastsMs);
  signal(helper, 'SIGCONT');
  return performance.now();
}

async function killHelper(cluster: FaultyCluster, fault: Fault): Promise<Lifted> {
  const helper = await findHelper(cluster, fault);
  if (helper === undefined || !signal(helper, 'SIGKILL')) return undefined;
  cluster.findings.programWasKilled();
  return performance.now();
}

async function killGuard(cluster: FaultyCluster, fault: Fault): Promise<Lifted> {
  const { daemon } = agentOf(cluster, fault);
  const guard = daemon.isRunning
    ? childrenOf(daemon.pid).find(({ name }) => name === 'guard')
    : undefined;
  return guard !== undefined && signal(guard, 'SIGKILL') ? performance.now() : undefined;
}

/** The machines of either host, because a run has few. */
const killOfMachine =
  (part: 'qemu' | 'shim'): Inject =>
  async (cluster, fault) => {
    const machines = [...machinesIn(cluster.dataDir(0)), ...machinesIn(cluster.dataDir(1))];
    const machine = pick(machines, fault);
    return machine !== undefined && signal(machine[part], 'SIGKILL')
      ? performance.now()
      : undefined;
  };

async function freeze(process: ForeignProcess, { lastsMs }: Fault): Promise<Lifted> {
  if (!signal(process, 'SIGSTOP')) return undefined;
  await sleep(lastsMs);
  return signal(process, 'SIGCONT') ? performance.now() : undefined;
}

async function freezeMachine(cluster: FaultyCluster, fault: Fault): Promise<Lifted> {
  const machines = machinesIn(cluster.dataDir(hostOf(fault.host)));
  const qemu = pick(machines, fault)?.qemu;
  return qemu === undefined ? undefined : freeze(qemu, fault);
}

const nfsServerOf = ({ stack }: FaultyCluster, fault: Fault): ForeignProcess | undefined =>
  pick(nfsServersIn(stack.environment['AGENT_CGROUP']), fault);

async function killNfsServer(cluster: FaultyCluster, fault: Fault): Promise<Lifted> {
  const server = nfsServerOf(cluster, fault);
  return server !== undefined && signal(server, 'SIGKILL') ? performance.now() : undefined;
}

async function freezeNfsServer(cluster: FaultyCluster, fault: Fault): Promise<Lifted> {
  const server = nfsServerOf(cluster, fault);
  return server === undefined ? undefined : freeze(server, fault);
}

async function killEverything({ supervisors }: FaultyCluster, { lastsMs }: Fault): Promise<Lifted> {
  const killed = await Promise.all(supervisors.map((supervisor) => supervisor.kill(lastsMs)));
  return killed.some((liftedAt) => liftedAt !== undefined) ? performance.now() : undefined;
}

const cut =
  (relayOf: (cluster: FaultyCluster) => Relay): Inject =>
  async (cluster, { lastsMs }) => {
    const relay = relayOf(cluster);
    relay.cut();
    await sleep(lastsMs);
    relay.mend();
    return performance.now();
  };

async function breakConnections({ relays }: FaultyCluster, fault: Fault): Promise<Lifted> {
  pick(Object.values(relays), fault)?.breakAll();
  return performance.now();
}

const LATENCY_MS = { min: 20, span: 300 } as const;

async function slowNetwork({ relays }: FaultyCluster, { lastsMs, choice }: Fault): Promise<Lifted> {
  const all = Object.values(relays);
  for (const relay of all) relay.slowDown(LATENCY_MS.min + choice * LATENCY_MS.span);
  await sleep(lastsMs);
  for (const relay of all) relay.slowDown(0);
  return performance.now();
}

const CALL_MS = { min: 50, span: 1_000 } as const;

async function slowCalls(
  cluster: FaultyCluster,
  { host, lastsMs, choice }: Fault,
): Promise<Lifted> {
  const slow = cluster.slowCalls[hostOf(host)];
  const ms = CALL_MS.min + choice * CALL_MS.span;
  await slow.set({ attachMs: ms, mountMs: ms, syncMs: ms });
  await sleep(lastsMs);
  await slow.set({});
  return performance.now();
}

/** Longer than an agent takes to start and to attach a disk again. */
const ATTACH_MS = { min: 8_000, span: 17_000 } as const;
const READY_MS_MAX = 15_000;
const ATTACHES_AFTER_MS = 1_500;

/**
 * The agent is killed while it attaches disks to loop devices, which takes seconds. What it began
 * is done when it is gone and the next agent, as fast as ever, has attached the same disks.
 */
async function killAgentInSlowCalls(cluster: FaultyCluster, fault: Fault): Promise<Lifted> {
  const { host, lastsMs, choice } = fault;
  const agent = agentOf(cluster, fault);
  const slow = cluster.slowCalls[hostOf(host)];
  await slow.set({ attachMs: ATTACH_MS.min + choice * ATTACH_MS.span });
  // An agent that has just started attaches the disks that are in use.
  await agent.kill(RESTART_MS);
  await Promise.race([agent.untilReady(), sleep(READY_MS_MAX)]).catch(() => undefined);
  await sleep(ATTACHES_AFTER_MS + lastsMs / 4);
  await slow.set({});
  return agent.kill(RESTART_MS);
}

async function fillStorage({ storage }: FaultyCluster, { lastsMs }: Fault): Promise<Lifted> {
  await storage.fill();
  await sleep(lastsMs);
  await storage.free();
  return performance.now();
}

const freezeAgent: Inject = (cluster, fault) => agentOf(cluster, fault).freeze(fault.lastsMs);

const INJECT: Readonly<Record<FaultKind, Inject>> = {
  'kill agent': (cluster, fault) => agentOf(cluster, fault).kill(fault.lastsMs),
  'kill agent in helper': killAgentInHelper,
  'kill agent in slow calls': killAgentInSlowCalls,
  'kill control': ({ control }, { lastsMs }) => control.kill(lastsMs),
  'kill redis': ({ redis }, { lastsMs }) => redis.kill(lastsMs),
  'kill everything': killEverything,
  'kill helper': killHelper,
  'kill guard': killGuard,
  'kill qemu': killOfMachine('qemu'),
  'kill shim': killOfMachine('shim'),
  'kill nfs server': killNfsServer,
  'freeze nfs server': freezeNfsServer,
  'freeze qemu': freezeMachine,
  'freeze agent': freezeAgent,
  'freeze agent long': freezeAgent,
  'freeze control': ({ control }, { lastsMs }) => control.freeze(lastsMs),
  'freeze redis': ({ redis }, { lastsMs }) => redis.freeze(lastsMs),
  'freeze helper': freezeHelper,
  'cut host from redis': cut(({ relays }) => relays.redis),
  'cut links': cut(({ relays }) => relays.links),
  'cut control from host': cut(({ relays }) => relays.internal),
  'break connections': breakConnections,
  'slow network': slowNetwork,
  'slow calls': slowCalls,
  'fill storage': fillStorage,
};

/** @see System.inject */
export const inject = (cluster: FaultyCluster, fault: Fault<FaultKind>): Promise<Lifted> =>
  INJECT[fault.kind](cluster, fault);
