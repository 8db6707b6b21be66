import type { Redis } from 'ioredis';
import { Script } from './script.ts';

const takeBack = new Script(`
  if redis.call('LREM', KEYS[1], 1, ARGV[1]) == 0 then return 0 end
  redis.call('DEL', KEYS[2])
  return 1
`);

/** The part of a BullMQ queue that names its keys. */
interface QueueKeys {
  toKey(type: string): string;
}

/** Jobs that wait in the queues of hosts. */
export class QueuedJobs {
  readonly #redis: Redis;

  constructor(redis: Redis) {
    this.#redis = redis;
  }

  /**
   * Removes a job that no host has taken. `Queue.remove` cannot tell: it also reports success for a
   * job that ran and is gone, and for one whose host let its lock expire.
   * @returns whether it was there: only then it surely never begins
   * @throws Error when Redis does not answer; it may have been removed then
   */
  async takeBack(queue: QueueKeys, id: string): Promise<boolean> {
    return (await takeBack.run(this.#redis, [queue.toKey('wait'), queue.toKey(id)], [id])) === 1;
  }
}
