import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';

/**
 * The process that was just spawned, once it surely runs. Without descriptors, memory or process
 * ids `spawn` returns a process without pid and without pipes and tells the reason by an event; an
 * `error` event that nobody listens to would end the agent.
 * @throws Error what kept it from being started; nothing runs then
 */
export async function started<T extends ChildProcess>(child: T): Promise<T> {
  child.on('error', () => undefined); // Later ones say that a signal could not be sent.
  if (child.pid === undefined) await once(child, 'spawn'); // Rejects with the reason.
  return child;
}
