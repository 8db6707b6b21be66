import { Redis } from 'ioredis';
import { primaryOf } from './primary-of.ts';
import type { RedisClient } from './redis-client.ts';
import { Script } from './script.ts';
import { MINUTE_MS } from '../units.ts';

/**
 * Also 1 for a job that was taken back before: the answer to that may have been lost with its
 * connection, and whoever waits for the job asks again.
 */
const TAKE_BACK = `
  if redis.call('LREM', KEYS[1], 1, ARGV[1]) == 1 then
    redis.call('DEL', KEYS[2])
    redis.call('SET', KEYS[3], 1, 'PX', ARGV[2])
  elseif redis.call('EXISTS', KEYS[3]) == 0 then
    return 0
  end
`;
const takeBack = new Script(`${TAKE_BACK} return 1`);

/**
 * The server that runs a script, by its run id. In a Redis Cluster no one else knows it for sure.
 */
const OWN_RUN_ID = "string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')";
const tellPrimary = new Script(`return ${OWN_RUN_ID}`);
const takeBackFromPrimary = new Script(`
  ${TAKE_BACK}
  return ${OWN_RUN_ID} == ARGV[3] and 1 or 0
`);

/** For how long it is known that a job was taken back: longer than anyone waits for one. */
const TAKEN_BACK_KNOWN_MS = 10 * MINUTE_MS;

/** The part of a BullMQ queue that builds its keys. */
interface QueueKeys {
  toKey(type: string): string;
}

/** A job as it was queued. */
export interface QueuedJob {
  readonly queue: QueueKeys;
  readonly id: string;
  /** The answer of {@link QueuedJobs.primary} at that time. */
  readonly primary: string | undefined;
}

/** Jobs that wait in hosts' queues. */
export class QueuedJobs {
  readonly #redis: RedisClient;

  constructor(redis: RedisClient) {
    this.#redis = redis;
  }

  /**
   * Which server has a queue, by its run id; undefined where Redis does not fail over.
   * @throws Error when Redis does not answer
   */
  async primary(queue: QueueKeys): Promise<string | undefined> {
    if (this.#redis instanceof Redis) return primaryOf(this.#redis);
    return String(await tellPrimary.run(this.#redis, [queue.toKey('wait')], []));
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
   * Removes a job that no host has taken. `Queue.remove` would not do: it also reports success for
   * a job that ran and was removed, and for one whose host let its lock expire.
   * @returns true when it was still waiting, now or at an earlier call, at the primary that it was
   *   queued at, and so will certainly never begin: what waits at another one may have been taken
   *   from the former one
   * @throws Error when Redis does not answer; the job may have been removed, as the next call tells
   */
  async takeBack({ queue, id, primary }: QueuedJob): Promise<boolean> {
    const keys = [queue.toKey('wait'), queue.toKey(id), queue.toKey(`${id}:takenBack`)];
    const args = [id, TAKEN_BACK_KNOWN_MS];
    if (this.#redis instanceof Redis) {
      const removed = await takeBack.run(this.#redis, keys, args);
      return removed === 1 && primaryOf(this.#redis) === primary;
    }
    return (await takeBackFromPrimary.run(this.#redis, keys, [...args, primary ?? ''])) === 1;
  }
}
