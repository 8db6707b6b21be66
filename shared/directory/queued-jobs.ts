import type { Redis } from 'ioredis';
import { Script } from './script.ts';

const takeBack = new Script(`
  if redis.call('LREM', KEYS[1], 1, ARGV[1]) == 0 then return 0 end
  redis.call('DEL', KEYS[2])
  return 1
`);

/** The part of a BullMQ queue that builds its keys. */
interface QueueKeys {
  toKey(type: string): string;
}

/** Jobs that wait in hosts' queues. */
export class QueuedJobs {
  readonly #redis: Redis;

  constructor(redis: Redis) {
    this.#redis = redis;
  }

  /** How many jobs wait in a queue, and when the oldest of them was queued (ms since the epoch). */
  async waiting(queue: QueueKeys): Promise<{ count: number; oldestAt: number | undefined }> {
    const [count, oldest] = await Promise.all([
      this.#redis.llen(queue.toKey('wait')),
      this.#redis.lindex(queue.toKey('wait'), -1),
    ]);
    const at = oldest === null ? null : await this.#redis.hget(queue.toKey(oldest), 'timestamp');
    return { count, oldestAt: at === null ? undefined : Number(at) };
  }

  /**
   * Removes a job that no host has taken. `Queue.remove` would not do: it also reports success for a
   * job that ran and was removed, and for one whose host let its lock expire.
   * @returns true when it was still waiting, and so will certainly never begin
   * @throws Error when Redis does not answer; the job may have been removed
   */
  async takeBack(queue: QueueKeys, id: string): Promise<boolean> {
    return (await takeBack.run(this.#redis, [queue.toKey('wait'), queue.toKey(id)], [id])) === 1;
  }
}
