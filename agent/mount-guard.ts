import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { paths } from './config.ts';
import { guardPath } from './native/native.ts';
import { started } from './started.ts';

/**
 * Starts the process that unmounts this agent's disks when the agent is gone, and waits until a
 * former agent's guard is done (guard.c).
 * @returns ends the guard, once nothing is mounted any more
 */
export async function startMountGuard(dataDir: string): Promise<() => Promise<void>> {
  const guard = await started(
    spawn(guardPath, [paths.guardLock(dataDir), dataDir], {
      stdio: ['pipe', 'pipe', 'ignore'],
      detached: true,
    }),
  );
  const ended = once(guard, 'exit');
  const ready = once(guard.stdout, 'data');
  const first = await Promise.race([ready.then(() => 'ready'), ended.then(() => 'ended')]);
  if (first === 'ended') throw new Error('the guard of the disks did not start');
  return async () => {
    guard.stdin.end();
    await ended;
  };
}
