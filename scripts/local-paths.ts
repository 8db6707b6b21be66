import { join } from 'node:path';

const root = join(import.meta.dirname, '..');

/** The paths of this checkout's run state. */
export const paths = {
  root,
  procfile: join(root, 'Procfile'),
  config: join(root, '.local/config.env'),
  clientEnv: join(root, '.local/env'),
  redis: join(root, '.local/redis'),
  agentData: join(root, '.local/agent'),
  storage: join(root, '.local/storage'),
  logs: join(root, '.local/log'),
  stackState: join(root, '.local/run/stack'),
} as const;

const isPackage = root === '/usr/lib/berth';

/** How the operator's commands are called here: the package has them in the path. */
export const commands = {
  install: isPackage ? 'berth-install' : 'scripts/install',
  admin: isPackage ? 'berth-admin' : 'scripts/admin',
  agent: isPackage ? 'berth-agent' : 'scripts/berth-agent',
} as const;
