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
