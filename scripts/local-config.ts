/** Writes .local/config.env and redis.conf. Existing values stay unless they must change. */
import { randomBytes } from 'node:crypto';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { readEnvFile, required, writeEnvFile, writePrivateFile, type Env } from './env-file.ts';
import { paths } from './local-paths.ts';
import { readStackState } from './stack-state.ts';

/** The ports that the stack listens on, with their defaults; a caller may choose others. */
const PORTS: Env = {
  REDIS_PORT: '8720',
  CONTROL_PORT: '8700',
  CONTROL_INTERNAL_PORT: '8701',
  AGENT_PORT: '8710',
  AGENT_ADMIN_PORT: '8711',
  INGRESS_PORT: '8712',
};

function secrets(): Env {
  return {
    CLUSTER_ID: `cl-${randomBytes(8).toString('hex')}`,
    CLUSTER_SECRET: randomBytes(32).toString('base64url'),
    ENCRYPTION_KEY: randomBytes(32).toString('base64'),
    SIGNING_KEYS: randomBytes(32).toString('base64url'),
  };
}

/** Each port from the caller's environment, else as it was kept, else the default. */
function choosePorts(kept: Env, caller: NodeJS.ProcessEnv): Env {
  const chosen = Object.keys(PORTS).map((name): [string, string] => {
    const port = caller[name] ?? kept[name] ?? required(PORTS, name);
    if (!/^\d{1,5}$/u.test(port) || Number(port) < 1 || Number(port) > 65_535) {
      throw new Error(`${name}=${port} is not a port: choose a number from 1 to 65535.`);
    }
    return [name, port];
  });
  const ports = Object.fromEntries(chosen);
  if (new Set(Object.values(ports)).size < chosen.length) {
    throw new Error(`two ports are the same: ${chosen.map((pair) => pair.join('=')).join(' ')}`);
  }
  return ports;
}

function defaults(ports: Env): Env {
  return {
    ...secrets(),
    REGION: 'local-dev',
    LOG_LEVEL: 'info',
    CONTROL_HOST: '127.0.0.1',
    REDIS_DATA_DIR: paths.redis,
    AUDIT_LOG: join(paths.logs, 'audit.log'),
    PUBLIC_BASE_URL: `http://127.0.0.1:${required(ports, 'CONTROL_PORT')}`,
    AGENT_HOST: '127.0.0.1',
    AGENT_PUBLIC_URL: `http://127.0.0.1:${required(ports, 'AGENT_PORT')}`,
    // The console's page opens sessions at agents, under whichever name it was opened.
    ALLOWED_ORIGINS: ['127.0.0.1', 'localhost']
      .map((host) => `http://${host}:${required(ports, 'CONTROL_PORT')}`)
      .join(','),
    INGRESS_ZONE: 'sbx.localhost',
    AGENT_DATA_DIR: paths.agentData,
    STORAGE_DIR: paths.storage,
    BUCKET_REACHABLE_NETWORKS: '',
  };
}

/** Settings that contain the port of another setting and must follow it when it changes. */
const CONTAINS_PORT: Env = {
  PUBLIC_BASE_URL: 'CONTROL_PORT',
  AGENT_PUBLIC_URL: 'AGENT_PORT',
  ALLOWED_ORIGINS: 'CONTROL_PORT',
};

/** Values that nobody chose and that have other defaults now. */
const FORMER_DEFAULTS: Env = {
  INGRESS_ZONE: 'localhost',
  BUCKET_REACHABLE_NETWORKS: '127.0.0.0/8',
};

/** Paths that set-up has built. The caller's environment does not override them. */
interface Built {
  readonly imageDir: string;
  readonly rootDisk: string;
  readonly guestDir: string;
}

function mergeConfig(kept: Env, caller: NodeJS.ProcessEnv, built: Built): Env {
  const ports = choosePorts(kept, caller);
  const isNew = Object.keys(kept).length === 0;
  const values = Object.entries(defaults(ports)).map(([name, fallback]): [string, string] => {
    const port = CONTAINS_PORT[name];
    const portMoved = port !== undefined && kept[port] !== ports[port];
    const isKept = !portMoved && kept[name] !== FORMER_DEFAULTS[name];
    return [name, (isNew ? caller[name] : isKept ? kept[name] : undefined) ?? fallback];
  });
  return {
    ...kept,
    ...Object.fromEntries(values),
    ...ports,
    REDIS_URL: redisUrl(kept['REDIS_URL'], required(ports, 'REDIS_PORT')),
    DEFAULT_IMAGE_DIR: built.imageDir,
    DEFAULT_ROOT_DISK: built.rootDisk,
    GUEST_DIR: built.guestDir,
  };
}

/** Not from the caller's environment: the stack has a Redis of its own. */
function redisUrl(kept: string | undefined, port: string): string {
  const password = kept === undefined ? randomBytes(24).toString('hex') : new URL(kept).password;
  return `redis://:${password}@127.0.0.1:${port}`;
}

function redisConf(config: Env): string {
  return [
    'bind 127.0.0.1',
    'protected-mode yes',
    `port ${required(config, 'REDIS_PORT')}`,
    `requirepass ${new URL(required(config, 'REDIS_URL')).password}`,
    `dir "${paths.redis}"`,
    'daemonize no',
    'appendonly yes',
    'appendfsync always',
    'aof-load-truncated yes',
    'save ""',
    'maxmemory-policy noeviction',
    '',
  ].join('\n');
}

const { positionals } = parseArgs({ allowPositionals: true });
const [imageDir, rootDisk, guestDir] = positionals;
if (imageDir === undefined || rootDisk === undefined || guestDir === undefined) {
  throw new Error('usage: local-config.ts <default image directory> <root disk> <guest directory>');
}
// A running stack keeps the ports that it listens on.
const caller = (await readStackState()).isRunning ? {} : process.env;
try {
  const config = mergeConfig(await readEnvFile(paths.config), caller, {
    imageDir,
    rootDisk,
    guestDir,
  });
  await mkdir(paths.redis, { recursive: true, mode: 0o700 });
  await writeEnvFile(paths.config, config);
  await writePrivateFile(join(paths.redis, 'redis.conf'), redisConf(config));
} catch (error) {
  console.error(`berth: ${error instanceof Error ? error.message : String(error)}`);
  process.exitCode = 1;
}
