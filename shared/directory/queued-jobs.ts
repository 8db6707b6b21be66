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
