import { setTimeout as sleep } from 'node:timers/promises';
import type { TestCluster } from '../helpers/cluster.ts';
import type { NetworkMachine } from '../helpers/machine-network.ts';
import { pick } from './faults.ts';
import type { MachineHost } from './machine-host.ts';
import type { Fault, MachineFaultKind } from './plan.ts';
import type { Supervisor } from './supervisor.ts';
import type { Lifted } from './system.ts';

/** The parts of a cluster on machines that faults reach (machine-cluster.ts). */
interface FaultyMachines {
  readonly cluster: TestCluster;
  readonly hosts: readonly MachineHost[];
  readonly controls: readonly Supervisor[];
  readonly proxy: Supervisor;
  readonly sentinels: readonly Supervisor[];
  readonly ceph: ReadonlyMap<string, Supervisor>;
  primary(): Promise<{ supervisor: Supervisor; machine: NetworkMachine } | undefined>;
}

type Inject = (cluster: FaultyMachines, fault: Fault) => Promise<Lifted>;
type Choose<T> = (cluster: FaultyMachines, fault: Fault) => Promise<T | undefined> | T | undefined;

const kill =
  (choose: Choose<Supervisor>): Inject =>
  async (cluster, fault) =>
    (await choose(cluster, fault))?.kill(fault.lastsMs);

const freeze =
  (choose: Choose<Supervisor>): Inject =>
  async (cluster, fault) =>
    (await choose(cluster, fault))?.freeze(fault.lastsMs);

/** Pulls the machine's cable and plugs it in again. */
const cut =
  (choose: Choose<NetworkMachine>): Inject =>
  async (cluster, fault) => {
    const machine = await choose(cluster, fault);
    if (machine === undefined) return undefined;
    await machine.cutOff();
    await sleep(fault.lastsMs);
    await machine.reconnect();
    return performance.now();
  };

const all =
  (act: 'kill' | 'freeze'): Inject =>
  async ({ ceph }, { lastsMs }) => {
    const done = await Promise.all([...ceph.values()].map((daemon) => daemon[act](lastsMs)));
    return done.some((liftedAt) => liftedAt !== undefined) ? performance.now() : undefined;
  };

const controlOf: Choose<Supervisor> = ({ controls }, fault) => pick(controls, fault);
/** The server that is the primary now, if the Sentinels have one that is up. */
const primaryOf: Choose<Supervisor> = async (cluster) => (await cluster.primary())?.supervisor;

const INJECT: Readonly<Record<MachineFaultKind, Inject>> = {
  'kill host': async ({ hosts }, { host, lastsMs }) => hosts[host]?.losePower(lastsMs),
  'kill agent': kill(({ hosts }, { host }) => hosts[host]?.agent),
  'freeze host': async ({ hosts }, { host, lastsMs }) => hosts[host]?.freeze(lastsMs),
  'cut host': cut(({ hosts }, { host }) => hosts[host]?.node.machine),
  'kill control': kill(controlOf),
  'freeze control': freeze(controlOf),
  'cut control': cut(({ cluster }, fault) => pick(cluster.controls, fault)?.machine),
  'kill haproxy': kill(({ proxy }) => proxy),
  'kill redis primary': kill(primaryOf),
  'freeze redis primary': freeze(primaryOf),
  'cut redis primary': cut(async (cluster) => (await cluster.primary())?.machine),
  'kill sentinel': kill(({ sentinels }, fault) => pick(sentinels, fault)),
  'kill osd': kill(({ ceph }, { choice }) => ceph.get(choice < 0.5 ? 'osd.0' : 'osd.1')),
  'kill mds': kill(({ ceph }) => ceph.get('mds.a')),
  'kill mon': kill(({ ceph }) => ceph.get('mon.a')),
  'kill all of ceph': all('kill'),
  'freeze all of ceph': all('freeze'),
};

/** @see System.inject */
export const injectIntoMachines = (
  cluster: FaultyMachines,
  fault: Fault<MachineFaultKind>,
): Promise<Lifted> => INJECT[fault.kind](cluster, fault);
