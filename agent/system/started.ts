import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';

/**
 * Waits until a spawned process runs. When descriptors, memory or process ids have run out, `spawn`
 * returns a process without pid and pipes, and emits the reason as an `error` event, which would
 * end the agent if nothing listened for it.
 * @throws Error why the process could not be started
 */
export async function started<T extends ChildProcess>(child: T): Promise<T> {
  child.on('error', () => undefined); // Later errors say that a signal could not be sent.
  if (child.pid === undefined) await once(child, 'spawn'); // Rejects with the reason.
  return child;
}
