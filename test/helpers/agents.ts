import { appendFile } from 'node:fs/promises';
import { join } from 'node:path';
import { variablesFor } from '../../shared/settings/known-settings.ts';
import { Daemon, type Environment } from './daemon.ts';
import { freePorts } from './ports.ts';
import type { Stack } from './stack.ts';

/** Another agent, not started yet, with the settings of the stack's own but for those given. */
export async function otherAgent(
  stack: Stack,
  name: string,
  settings: Environment = {},
): Promise<Daemon> {
  const [port, adminPort] = await freePorts(2);
  const environment: Environment = {
    ...stack.environment,
    AGENT_DATA_DIR: join(stack.directory, name),
    AGENT_PORT: String(port),
    AGENT_ADMIN_PORT: String(adminPort),
    ...settings,
  };
  const main = new URL('../../agent/main.ts', import.meta.url).pathname;
  const logPath = join(stack.directory, `${name}.log`);
  await appendFile(logPath, '');
  const variables = variablesFor('agent', environment) as Environment;
  return new Daemon(name, [process.execPath, main], variables, logPath);
}
