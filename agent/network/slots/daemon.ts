import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { isSetting } from '../../../shared/settings/known-settings.ts';
import { killGroup, readPids, removeCgroups, trackingGroup } from '../../system/cgroup.ts';
import { failpoint } from '../../system/failpoint.ts';
import { type HostGroups, NETWORK_GROUP } from '../../system/helper-group.ts';
import { spawnDetached } from '../../system/spawn.ts';
import { started } from '../../system/started.ts';
import { NAMESPACES } from './nft.ts';

const START_MS_MAX = 10_000;
const END_MS_MAX = 5_000;

/** A program of the host's network. It goes on without an agent, and the next agent finds it. */
export interface DaemonSpec {
  /** Names its control group, by which it is found: all that runs there is this daemon. */
  readonly name: string;
  readonly namespace: string;
  /** A program, by its path, that goes to the background once it is ready. */
  readonly command: readonly [string, ...string[]];
}

const groupOf = ({ cgroupParent }: HostGroups, name: string): string =>
  `${cgroupParent}/${NETWORK_GROUP}/${name}`;

/**
 * Has the daemon run, and as the spec says. One that runs otherwise is replaced, as is one of an
 * agent that gave daemons its settings, secrets among them.
 */
export async function keepDaemon(groups: HostGroups, spec: DaemonSpec): Promise<void> {
  const procs = join(trackingGroup(groups.cgroups, groupOf(groups, spec.name)), 'cgroup.procs');
  const expected = `${spec.command.join('\0')}\0`;
  const pids = await readPids(procs);
  if (pids.some((pid) => textOf(pid, 'cmdline') === expected && !hasSettings(pid))) return;
  await endDaemon(groups, spec.name);
  await failpoint(`start ${spec.name}`, () => startDaemon(spec, procs));
}

/** Ends a daemon, if it runs, and removes its group. Idempotent. */
export async function endDaemon(groups: HostGroups, name: string): Promise<void> {
  const group = groupOf(groups, name);
  const hanging = await killGroup(groups.cgroups, group, END_MS_MAX);
  if (hanging.length > 0) throw new Error(`${name} does not end: ${hanging.join(' ')}`);
  await removeCgroups(groups.cgroups, group);
}

/** Not on a leash, because it outlives the agent. */
async function startDaemon({ name, namespace, command }: DaemonSpec, procs: string): Promise<void> {
  await mkdir(join(procs, '..'), { recursive: true });
  const enter = `echo 0 > "$0" && exec nsenter --net=${NAMESPACES}/${namespace} "$@"`;
  const child = await started(
    spawnDetached('sh', ['-c', enter, procs, ...command], { stdio: ['ignore', 'ignore', 'pipe'] }),
  );
  let printed = '';
  child.stderr?.on('data', (chunk: Buffer) => (printed += chunk.toString('utf8')));
  const timer = setTimeout(() => child.kill('SIGKILL'), START_MS_MAX);
  const [code] = (await once(child, 'exit')) as [number | null];
  clearTimeout(timer);
  child.stderr?.destroy();
  if (code !== 0) throw new Error(`${name} did not start: ${printed.trim().slice(-500)}`);
}

/** @returns undefined when the daemon has ended */
function textOf(pid: number, file: 'cmdline' | 'environ'): string | undefined {
  try {
    return readFileSync(`/proc/${pid}/${file}`, 'utf8');
  } catch {
    return undefined;
  }
}

const hasSettings = (pid: number): boolean =>
  (textOf(pid, 'environ') ?? '').split('\0').some((pair) => isSetting(pair.split('=', 1)[0] ?? ''));
