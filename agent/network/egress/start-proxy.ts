import { closeSync, openSync } from 'node:fs';
import { MiB } from '../../../shared/units.ts';
import { type CgroupHost, killGroup, removeCgroups } from '../../system/cgroup.ts';
import { failpoint } from '../../system/failpoint.ts';
import { makeLimitedGroup } from '../../system/limited-group.ts';
import { spawnDetached } from '../../system/spawn.ts';
import { started } from '../../system/started.ts';
import type { ProxyArguments } from './egress-settings.ts';

const MEMORY_BYTES_MAX = 768 * MiB;
const HEAP_MIB_MAX = 320;
const END_MS_MAX = 5_000;

/** Where and as whom the proxy of a host runs. */
export interface ProxySpec extends ProxyArguments {
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
export async function startProxy(spec: ProxySpec): Promise<() => boolean> {
  const { control, port, names, uid, namespacePath } = spec;
  const { cgroups, group } = spec;
  const joined = await makeLimitedGroup(cgroups, group, { memoryBytes: MEMORY_BYTES_MAX });
  // The shell joins the groups before anything else runs.
  const enter = 'while [ "$1" != -- ]; do echo 0 > "$1"; shift; done; shift; exec "$@"';
  const args = JSON.stringify({ control, port, names, uid } satisfies ProxyArguments);
  const command = [
    ...['nsenter', `--net=${namespacePath}`, '--'],
    ...['prlimit', '--core=0', '--'],
    ...['setpriv', '--no-new-privs', '--clear-groups', '--'],
    ...[process.execPath, `--max-old-space-size=${HEAP_MIB_MAX}`, program, args],
  ];
  const errors = openSync(spec.errorLog, 'w', 0o600);
  try {
    const child = await failpoint('start egress proxy', () =>
      started(
        spawnDetached('sh', ['-c', enter, 'sh', ...joined, '--', ...command], {
          stdio: ['ignore', 'ignore', errors],
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
}: Pick<ProxySpec, 'cgroups' | 'group'>): Promise<void> {
  const hanging = await killGroup(cgroups, group, END_MS_MAX);
  if (hanging.length > 0) throw new Error(`the egress proxy does not end: ${hanging.join(' ')}`);
  await removeCgroups(cgroups, group);
}
