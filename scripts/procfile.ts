import { connectRedis } from '../shared/directory/redis.ts';
import { required, type Env } from './env-file.ts';

/** A line of the Procfile, with the supervisor's settings for it. */
export interface ServiceSpec {
  readonly name: string;
  readonly command: string;
  readonly stop: { readonly withinMs: number; readonly signal: NodeJS.Signals };
  readonly isReady: () => Promise<boolean>;
}

export function parseProcfile(text: string, config: Env): ServiceSpec[] {
  return text.split('\n').flatMap((line) => {
    const match = /^([\w-]+):\s*(\S.*)$/u.exec(line);
    if (match === null) return [];
    const [, name = '', command = ''] = match;
    const isReady = () => serviceIsReady(name, config);
    return [{ name, command, stop: howToStop(name), isReady }];
  });
}

/** The signal that asks a process to stop, and how long it may take before it is killed. */
export function howToStop(name: string): ServiceSpec['stop'] {
  // SIGPWR, because on SIGTERM the agent leaves its sandboxes running.
  if (name === 'agent') return { withinMs: 150_000, signal: 'SIGPWR' };
  return { withinMs: name === 'control' ? 25_000 : 10_000, signal: 'SIGTERM' };
}

function serviceIsReady(name: string, config: Env): Promise<boolean> {
  switch (name) {
    case 'redis':
      return answersPing(required(config, 'REDIS_URL'));
    case 'control':
      return answersReady(required(config, 'CONTROL_INTERNAL_PORT'));
    case 'agent':
      return answersReady(required(config, 'AGENT_ADMIN_PORT'));
    default:
      return Promise.resolve(true);
  }
}

async function answersReady(port: string): Promise<boolean> {
  try {
    const signal = AbortSignal.timeout(2000);
    const response = await fetch(`http://127.0.0.1:${port}/readyz`, { signal });
    await response.body?.cancel();
    return response.status === 200;
  } catch {
    return false;
  }
}

/** A Redis that still reads its data from disk accepts connections but does not answer PONG. */
async function answersPing(url: string): Promise<boolean> {
  const redis = connectRedis(url, () => undefined);
  try {
    await redis.connect();
    return (await redis.ping()) === 'PONG';
  } catch {
    return false;
  } finally {
    redis.disconnect();
  }
}
