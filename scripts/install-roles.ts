/*
 * Writes the files of scripts/install and scripts/berth-agent for a role, below a root directory.
 */
import { randomBytes } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdir, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import {
  type Env,
  readEnvFile,
  readFileIfExists,
  required,
  writeEnvFile,
  writePrivateFile,
} from './env-file.ts';
import { paths } from './local-paths.ts';
import { LOGROTATE, MACHINES_CGROUP, SYSUSERS, unitsOf } from './systemd-units.ts';

export const ROLES = ['redis', 'control', 'agent'] as const;
export type Role = (typeof ROLES)[number];

export interface InstallOptions {
  readonly root: string;
  readonly address: string;
  readonly cluster: Env;
  readonly redisUrl?: string | undefined;
  /** Further settings of the role. */
  readonly own?: Env;
}

const newCluster = (): Env => ({
  CLUSTER_ID: `cl-${randomBytes(8).toString('hex')}`,
  CLUSTER_SECRET: randomBytes(32).toString('base64url'),
  ENCRYPTION_KEY: randomBytes(32).toString('base64'),
  SIGNING_KEYS: randomBytes(32).toString('base64url'),
  REGION: 'self-hosted',
});

/** Where Redis is, as far as the cluster has it set. */
const REDIS = [
  ...['REDIS_URL', 'REDIS_CLUSTER_NODES'],
  ...['REDIS_SENTINELS', 'REDIS_SENTINEL_NAME', 'REDIS_SENTINEL_PASSWORD'],
  ...['REDIS_USERNAME', 'REDIS_PASSWORD', 'REDIS_TLS_CA', 'REDIS_CONFIRMING_REPLICAS'],
] as const;

/**
 * Settings that a host which joins gets besides the names that every node has, where the cluster
 * has them set.
 */
export const JOINED = [
  ...REDIS,
  ...['CLUSTER_TLS_CA'],
  ...['BUCKET_REACHABLE_NETWORKS', 'INGRESS_ZONE', 'ALLOWED_ORIGINS', 'TRUSTED_PROXIES'],
] as const;
/** Names that every host has; control nodes have the signing keys as well. */
export const HOST_SHARED = ['CLUSTER_ID', 'CLUSTER_SECRET', 'ENCRYPTION_KEY', 'REGION'] as const;
const CONTROL_SHARED = [...HOST_SHARED, 'SIGNING_KEYS'] as const;

export const pickPresent = (env: Env, names: readonly string[]): Env =>
  Object.fromEntries(
    names.flatMap((name) => {
      const value = env[name] ?? '';
      return value === '' ? [] : [[name, value]];
    }),
  );

const pick = (env: Env, names: readonly string[]): Env =>
  Object.fromEntries(names.map((name) => [name, required(env, name)]));

const etc = (root: string, name: string): string => join(root, 'etc/berth', name);

/** The URL of the Redis that was installed on this host, if it was. */
async function ownRedisUrl(root: string, host: string): Promise<string | undefined> {
  const conf = await readFileIfExists(etc(root, 'redis.conf'));
  const [, password] = /^requirepass (\S+)$/mu.exec(conf ?? '') ?? [];
  return password === undefined ? undefined : `redis://:${password}@${host}:6379`;
}

async function installRedis({ root, address }: InstallOptions): Promise<string> {
  const file = etc(root, 'redis.conf');
  if ((await readFileIfExists(file)) !== undefined) return file;
  const lines = [
    `bind 127.0.0.1${address === '127.0.0.1' ? '' : ` ${address}`}`,
    ...['protected-mode yes', 'port 6379', `requirepass ${randomBytes(24).toString('hex')}`],
    ...['dir /var/lib/berth-redis', 'daemonize no', 'appendonly yes', 'appendfsync always'],
    ...['aof-load-truncated yes', 'save ""', 'maxmemory-policy noeviction', ''],
  ];
  await writePrivateFile(file, lines.join('\n'));
  return file;
}

/** @throws Error when it is not known where Redis is */
async function clusterOf({ root, address, cluster, redisUrl }: InstallOptions): Promise<Env> {
  const isNamed = ['REDIS_SENTINELS', 'REDIS_CLUSTER_NODES'].some((name) => name in cluster);
  if (redisUrl === undefined && isNamed) return cluster;
  const url = redisUrl ?? cluster['REDIS_URL'] ?? (await ownRedisUrl(root, address));
  if (url === undefined) {
    throw new Error(
      'Redis is not installed here: give --redis-url, or --cluster with a file that names it',
    );
  }
  return { ...cluster, REDIS_URL: url };
}

/** @throws Error when the host has another Redis set: values that it has are kept */
function refuseOtherRedis(file: string, kept: Env, redisUrl: string | undefined): void {
  const present = kept['REDIS_URL'];
  if (redisUrl === undefined || present === undefined || present === redisUrl) return;
  throw new Error(`${file} has another REDIS_URL, which would stay: change it there`);
}

async function installControl(options: InstallOptions): Promise<string> {
  const { root, address } = options;
  const file = etc(root, 'control.env');
  const kept = await readEnvFile(file);
  refuseOtherRedis(file, kept, options.redisUrl);
  const own = await readEnvFile(etc(root, 'cluster.env'));
  const known = { ...newCluster(), ...own, ...options.cluster, ...kept };
  const cluster = await clusterOf({ ...options, cluster: known });
  const shared = { ...pick(cluster, CONTROL_SHARED), ...pickPresent(cluster, REDIS) };
  await writeEnvFile(file, {
    ...{ CONTROL_HOST: address, CONTROL_PORT: '8700', CONTROL_INTERNAL_PORT: '8701' },
    ...{ CONTROL_LEAVE_MS: '5000', PUBLIC_BASE_URL: `http://${address}:8700` },
    AUDIT_LOG: '/var/log/berth-control/audit.log',
    ...shared,
    ...kept,
  });
  await writeEnvFile(etc(root, 'cluster.env'), shared);
  return file;
}

async function installAgent(options: InstallOptions): Promise<string> {
  const { root, address, own: given = {} } = options;
  const file = etc(root, 'agent.env');
  const kept = await readEnvFile(file);
  refuseOtherRedis(file, kept, options.redisUrl);
  const own = await readEnvFile(etc(root, 'cluster.env'));
  const cluster = await clusterOf({ ...options, cluster: { ...own, ...options.cluster, ...kept } });
  if (cluster['CLUSTER_ID'] === undefined) {
    throw new Error(
      'the cluster is not known: give --cluster with /etc/berth/cluster.env of a control node',
    );
  }
  const built = await readEnvFile(paths.config);
  // A host that was installed without has its machines in the default group still.
  const isNew = kept['AGENT_DATA_DIR'] === undefined;
  await writeEnvFile(file, {
    ...(isNew ? { AGENT_CGROUP: MACHINES_CGROUP } : {}),
    ...{ AGENT_HOST: address, AGENT_PORT: '8710', AGENT_ADMIN_PORT: '8711', INGRESS_PORT: '8712' },
    AGENT_PUBLIC_URL: `http://${address}:8710`,
    ...{ AGENT_DATA_DIR: '/var/lib/berth/agent', STORAGE_DIR: '/var/lib/berth/storage' },
    ...pick(built, ['DEFAULT_IMAGE_DIR', 'DEFAULT_ROOT_DISK', 'GUEST_DIR']),
    ...pick(cluster, HOST_SHARED),
    ...pickPresent(cluster, JOINED), // Not the signing keys: an agent signs nothing for callers.
    ...given,
    ...kept,
  });
  return file;
}

const INSTALL = { redis: installRedis, control: installControl, agent: installAgent };

async function write(root: string, path: string, text: string): Promise<string> {
  const target = join(root, path);
  await mkdir(dirname(target), { recursive: true });
  await writeFile(target, text, { mode: 0o644 });
  return target;
}

/**
 * Writes what systemd and logrotate have of a role, as its configuration asks for.
 * @returns what it wrote
 */
async function writeUnits(role: Role, root: string): Promise<string[]> {
  const agent = await readEnvFile(etc(root, 'agent.env'));
  const directories = ['AGENT_DATA_DIR', 'STORAGE_DIR', 'SANDBOX_DIR'];
  const mounts = Object.values(pickPresent(agent, directories));
  const written: string[] = [];
  for (const [name, text] of unitsOf(role, paths.root, mounts)) {
    written.push(await write(root, join('etc/systemd/system', name), text));
  }
  if (role === 'control') written.push(await write(root, 'etc/logrotate.d/berth', LOGROTATE));
  return [...written, await write(root, 'etc/sysusers.d/berth.conf', SYSUSERS)];
}

/** Writes the units of the roles that this host has anew. @returns what it wrote */
export async function renewUnits(root: string): Promise<string[]> {
  const unit = (role: Role): string => join(root, `etc/systemd/system/berth-${role}.service`);
  const written = [];
  for (const role of ROLES) {
    if (existsSync(unit(role))) written.push(...(await writeUnits(role, root)));
  }
  return [...new Set(written)];
}

/** Writes configuration, users and units of a role. @returns what it wrote */
export async function installRole(role: Role, options: InstallOptions): Promise<string[]> {
  const { root } = options;
  await mkdir(join(root, 'etc/berth'), { recursive: true, mode: 0o711 });
  const file = await INSTALL[role](options);
  return [file, ...(await writeUnits(role, root))];
}
