/* Checks of this computer: versions, kernel, control groups, space, clock. */
import { access, constants, readFile, statfs } from 'node:fs/promises';
import { release } from 'node:os';
import { dirname } from 'node:path';
import { NFT } from '../../agent/network/slots/nft.ts';
import { detectCgroups } from '../../agent/system/cgroup.ts';
import { run } from '../../agent/system/spawn.ts';
import { GiB } from '../../shared/units.ts';
import type { Env } from '../env-file.ts';
import { paths } from '../local-paths.ts';
import { failed, type Finding, ok, warning } from './finding.ts';

/** Programs that an agent runs, and how they tell their version. */
const PROGRAMS = [
  ['redis-server', '--version'],
  ['runc', '--version'],
  [process.arch === 'arm64' ? 'qemu-system-aarch64' : 'qemu-system-x86_64', '--version'],
  ['qemu-img', '--version'],
  ['mkfs.ext4', '-V'],
  [NFT, '--version'],
  ['skopeo', '--version'],
  ['bwrap', '--version'],
  ['rg', '--version'],
] as const;

async function versionOf(program: string, option: string): Promise<Finding> {
  try {
    const text = await run(program, [option]);
    return ok('versions', `${program}: ${text.split('\n')[0]?.trim() ?? ''}`);
  } catch {
    return failed('versions', `${program} is missing or does not run`, 'run ./scripts/setup');
  }
}

/** The programs and their versions. */
export async function checkVersions(): Promise<Finding[]> {
  const programs = await Promise.all(PROGRAMS.map(([name, option]) => versionOf(name, option)));
  const revision = await run('git', ['-C', paths.root, 'describe', '--always', '--dirty']).catch(
    () => 'unknown',
  );
  return [
    ok('versions', `Berth ${revision.trim()}, Node ${process.version}, Linux ${release()}`),
    ...programs,
  ];
}

const KERNEL_MIN = [5, 19] as const;

/** File systems that the kernel must have, and below them devices, each with what depends on it. */
const FILE_SYSTEMS = ['ext4', 'overlay', 'tmpfs'] as const;
const DEVICES = [
  ['/dev/loop-control', 'disks are mounted by loop devices', 'load the module loop'],
  ['/dev/net/tun', 'virtual machines have no network without it', 'load the module tun'],
] as const;

const exists = (path: string): Promise<boolean> =>
  access(path, constants.F_OK).then(
    () => true,
    () => false,
  );

/** Kernel, file systems and devices. */
export async function checkKernel(): Promise<Finding[]> {
  const found: Finding[] = [];
  const [major = 0, minor = 0] = release().split('.').map(Number);
  const isNew = major > KERNEL_MIN[0] || (major === KERNEL_MIN[0] && minor >= KERNEL_MIN[1]);
  if (!isNew) {
    const message = `Linux ${release()} has no user namespaces as containers need them: commands run as root of the host`;
    found.push(warning('kernel', message, `use Linux ${KERNEL_MIN.join('.')} or newer`));
  }
  const known = await readFile('/proc/filesystems', 'utf8');
  for (const name of FILE_SYSTEMS) {
    if (known.split(/\s+/u).includes(name)) continue;
    found.push(warning('kernel', `the file system ${name} is not there yet`, `modprobe ${name}`));
  }
  for (const [path, why, next] of DEVICES) {
    if (!(await exists(path))) found.push(failed('kernel', `${path} is missing: ${why}`, next));
  }
  if (process.getuid?.() !== 0) {
    found.push(failed('kernel', 'an agent mounts disks and starts machines', 'run this as root'));
  }
  return found.length > 0 ? found : [ok('kernel', `Linux ${release()} has what Berth needs`)];
}

const CONTROLLERS = ['memory', 'pids', 'cpu'] as const;

/** Which limits the control groups of this host can hold. */
export async function checkCgroups(): Promise<Finding[]> {
  const { version, controllers } = await detectCgroups();
  const missing = CONTROLLERS.filter((name) => !controllers.has(name));
  if (missing.length === 0) return [ok('cgroups', `version ${version}, with all controllers`)];
  const message = `version ${version} without ${missing.join(', ')}: these limits are not held`;
  return [warning('cgroups', message, 'enable the controllers, or use another host')];
}

const SPACE_MIN = 5 * GiB;
const INODES_MIN = 100_000;

/** The nearest directory that is there. */
async function nearest(path: string): Promise<string> {
  for (let at = path; ; at = dirname(at)) if ((await exists(at)) || at === '/') return at;
}

async function spaceAt(what: string, path: string): Promise<Finding> {
  const { bavail, bsize, files, ffree } = await statfs(await nearest(path));
  const free = bavail * bsize;
  const said = `${what} (${path}) has ${(free / GiB).toFixed(1)} GiB free`;
  const next = 'free some, or move it to a larger file system';
  if (free < GiB) return failed('space', said, next);
  if (free < SPACE_MIN) return warning('space', said, next);
  if (files > 0 && ffree < INODES_MIN) {
    return warning('space', `${what} (${path}) has ${ffree} inodes free`, next);
  }
  return ok('space', said);
}

/** Free space where Berth keeps things. */
export async function checkSpace(config: Env): Promise<Finding[]> {
  const places = [
    ['storage', config['STORAGE_DIR'] ?? paths.storage],
    ['data of the agent', config['AGENT_DATA_DIR'] ?? paths.agentData],
    ['Redis', config['REDIS_DATA_DIR'] ?? paths.redis],
    ['build cache', process.env['BERTH_CACHE_DIR'] ?? '/var/cache/berth'],
  ] as const;
  return Promise.all(places.map(([what, path]) => spaceAt(what, path)));
}

/** Whether something keeps the clock right: signatures, links and certificates end by it. */
export async function checkClock(): Promise<Finding[]> {
  const args = ['show', '--property=NTPSynchronized', '--value'];
  const said = (await run('timedatectl', args).catch(() => '')).trim();
  if (said === 'yes') return [ok('clock', 'is synchronized by NTP')];
  if (said === 'no') {
    const next = 'run an NTP client, such as systemd-timesyncd or chrony';
    return [warning('clock', 'is not synchronized', next)];
  }
  const message = 'whether it is synchronized cannot be found out: timedatectl does not answer';
  return [warning('clock', message, 'see that an NTP client keeps the clock of this host')];
}
