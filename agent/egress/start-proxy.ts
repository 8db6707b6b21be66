import { spawn } from 'node:child_process';
import { closeSync, openSync } from 'node:fs';
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { errnoOf } from '../../shared/errors.ts';
import { MiB } from '../../shared/units.ts';
import { type CgroupHost, killGroup, removeCgroups, trackingGroup } from '../system/cgroup.ts';
import { failpoint } from '../system/failpoint.ts';
import { started } from '../system/started.ts';
import type { ProxyArguments } from './egress-settings.ts';

const MEMORY_BYTES_MAX = 768 * MiB;
const HEAP_MIB_MAX = 320;
const END_MS_MAX = 5_000;
const ROOT = '/sys/fs/cgroup';

/** Where and as whom the proxy of a host runs. */
export interface ProxyPlace extends ProxyArguments {
  readonly cgroups: CgroupHost;
  /** Its control group: all that runs there is this proxy. */
  readonly group: string;
  /** The file of the network namespace. */
  readonly namespacePath: string;
  /** Has the last words of one that failed. */
  readonly errorLog: string;
}

const program = new URL('main.ts', import.meta.url).pathname;

/**
 * Begins to start the proxy, which goes on without the agent. It is ready once it answers on its
 * control socket.
 * @returns whether it has ended
 */
export async function startProxy(place: ProxyPlace): Promise<() => boolean> {
  const { control, port, uid, namespacePath } = place;
  const joined = await makeGroup(place);
  // The shell joins the groups before anything else runs.
  const enter = 'while [ "$1" != -- ]; do echo 0 > "$1"; shift; done; shift; exec "$@"';
  const args = JSON.stringify({ control, port, uid } satisfies ProxyArguments);
  const command = [
    ...['nsenter', `--net=${namespacePath}`, '--'],
    ...['prlimit', '--core=0', '--'],
    ...['setpriv', '--no-new-privs', '--clear-groups', '--'],
    ...[process.execPath, `--max-old-space-size=${HEAP_MIB_MAX}`, program, args],
  ];
  const errors = openSync(place.errorLog, 'w', 0o600);
  try {
    const child = await failpoint('start egress proxy', () =>
      started(
        spawn('sh', ['-c', enter, 'sh', ...joined, '--', ...command], {
          stdio: ['ignore', 'ignore', errors],
          detached: true,
          cwd: '/',
          env: { PATH: process.env['PATH'] },
        }),
      ),
    );
    child.unref();
    return () => child.exitCode !== null || child.signalCode !== null;
  } finally {
    closeSync(errors);
  }
}

/** Ends the proxy of a host, if there is one. Idempotent. */
export async function endProxy({
  cgroups,
  group,
}: Pick<ProxyPlace, 'cgroups' | 'group'>): Promise<void> {
  const hanging = await killGroup(cgroups, group, END_MS_MAX);
  if (hanging.length > 0) throw new Error(`the egress proxy does not end: ${hanging.join(' ')}`);
  await removeCgroups(cgroups, group);
}

/** Bounds the proxy's memory, where the host can, and keeps it out of swap. */
async function makeGroup({ cgroups, group }: ProxyPlace): Promise<string[]> {
  const isOne = cgroups.version === 1;
  const tracking = trackingGroup(cgroups, group);
  const memory = isOne ? join(ROOT, 'memory', group) : tracking;
  await mkdir(tracking, { recursive: true });
  if (isOne && cgroups.controllers.has('memory')) await mkdir(memory, { recursive: true });
  if (!isOne) await delegateMemory(group);
  const files = isOne
    ? ['memory.limit_in_bytes', 'memory.memsw.limit_in_bytes']
    : ['memory.max', 'memory.swap.max'];
  const [limit = '', withSwap = ''] = files;
  await setIfThere(join(memory, limit), MEMORY_BYTES_MAX);
  await setIfThere(join(memory, withSwap), isOne ? MEMORY_BYTES_MAX : 0);
  const groups = new Set(cgroups.controllers.has('memory') ? [tracking, memory] : [tracking]);
  return [...groups].map((each) => join(each, 'cgroup.procs'));
}

async function delegateMemory(group: string): Promise<void> {
  let path = ROOT;
  for (const name of group.split('/').filter((part) => part !== '')) {
    await setIfThere(join(path, 'cgroup.subtree_control'), '+memory');
    path = join(path, name);
  }
}

/** Not every kernel counts swap, and not every host lets its agent limit memory. */
async function setIfThere(path: string, value: number | string): Promise<void> {
  try {
    await writeFile(path, String(value));
  } catch (error) {
    if (!['ENOENT', 'EACCES', 'EBUSY'].includes(errnoOf(error) ?? '')) throw error;
  }
}
