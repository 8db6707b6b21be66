/*
 * Whether the kernel confines what Berth runs: namespaces, seccomp, rules of the firewall, and the
 * table of its connections.
 */
import { readFile } from 'node:fs/promises';
import { NFT } from '../../agent/network/slots/nft.ts';
import { run } from '../../agent/system/spawn.ts';
import { NETWORK_LIMITS } from '../../agent/network/limits.ts';
import { failed, type Finding, ok, warning } from './finding.ts';

/** Options of unshare(1), each with what it is for. */
const NAMESPACES = [
  ['user', ['--user'], 'users of containers are nobody on the host'],
  ['network', ['--net'], 'commands and sandboxes have a network of their own'],
  ['PID', ['--pid', '--fork'], 'containers do not see the processes of the host'],
  ['mount', ['--mount'], 'containers do not see the files of the host'],
  ['IPC', ['--ipc'], 'containers share no memory with the host'],
  ['UTS', ['--uts'], 'containers have names of their own'],
] as const;

/** Makes a namespace of each kind, which ends with the program in it. */
export async function checkNamespaces(): Promise<Finding[]> {
  const tries = NAMESPACES.map(async ([kind, options, why]): Promise<Finding[]> => {
    try {
      await run('unshare', [...options, 'true']);
      return [];
    } catch {
      const next = 'run this as root, and see the limits in /proc/sys/user';
      return [failed('namespaces', `a ${kind} namespace cannot be made, by which ${why}`, next)];
    }
  });
  const found = (await Promise.all(tries)).flat();
  return found.length > 0 ? found : [ok('namespaces', 'of every kind can be made')];
}

const ACTIONS = ['allow', 'errno'] as const;

/** Whether system calls can be refused: by the kernel, and by runc. */
export async function checkSeccomp(): Promise<Finding[]> {
  const known = await readFile('/proc/sys/kernel/seccomp/actions_avail', 'utf8').catch(() => '');
  if (!ACTIONS.every((action) => known.split(/\s+/u).includes(action))) {
    const message = 'the kernel cannot refuse system calls (seccomp filters)';
    return [failed('seccomp', message, 'use a kernel with CONFIG_SECCOMP_FILTER')];
  }
  if (!(await run('runc', ['--version'])).includes('libseccomp')) {
    const message = 'runc was built without seccomp, so containers could not be confined';
    return [failed('seccomp', message, "use the distribution's runc")];
  }
  return [ok('seccomp', 'kernel and runc refuse system calls')];
}

/** Rules like those of slots and routers: filters with state, and translated addresses. */
const RULES = `table inet berth_doctor {
  chain forward { type filter hook forward priority 0; ct state established accept; }
  chain out { type nat hook postrouting priority srcnat; masquerade; }
}`;

/** Has the kernel check rules without loading them. */
export async function checkNft(): Promise<Finding[]> {
  try {
    await run(NFT, ['--check', RULES]);
    return [ok('nft', 'the kernel takes filters and translated addresses')];
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    const next = 'load the modules nf_tables, nf_conntrack and nft_masq, and run this as root';
    return [failed('nft', `sandboxes and commands get no network: ${why}`, next)];
  }
}

/** So many sandboxes may open connections as fast as they can without filling the table. */
const BUSY_SANDBOXES = 4;

/** @param endedSeconds for how long a connection over TCP that has ended keeps its entry */
export function judgeConntrack(max: number, endedSeconds: number): Finding {
  const { connectionsPerSandboxMax, newConnectionsPerSecondMax, newConnectionsBurstMax } =
    NETWORK_LIMITS;
  const ended = newConnectionsBurstMax + newConnectionsPerSecondMax * endedSeconds;
  const wanted = BUSY_SANDBOXES * (connectionsPerSandboxMax + ended);
  const size = `the table of connections has ${max} entries`;
  if (max >= wanted) return ok('conntrack', size);
  const larger = `sysctl net.netfilter.nf_conntrack_max=${wanted}`;
  const next = `${larger}, or a shorter nf_conntrack_tcp_timeout_time_wait`;
  return warning('conntrack', `${size}: ${BUSY_SANDBOXES} sandboxes can fill it`, next);
}

const readConntrack = (name: string): Promise<string> =>
  readFile(`/proc/sys/net/netfilter/nf_conntrack_${name}`, 'utf8');

/** Whether the host's table of connections, which all of its sandboxes share, is large enough. */
export async function checkConntrack(): Promise<Finding[]> {
  try {
    const max = Number(await readConntrack('max'));
    return [judgeConntrack(max, Number(await readConntrack('tcp_timeout_time_wait')))];
  } catch {
    const message = 'the table of connections is not there yet';
    return [warning('conntrack', message, 'load the module nf_conntrack')];
  }
}
