import type { RedisClient } from './redis-client.ts';
import { parseJson } from '../json.ts';
import { keys } from './keys.ts';

/**
 * Finds the origins whose pages may read objects of a disk by the disk's id alone, because browsers
 * send preflights without credentials. The index from a disk to its account is written before the
 * origins and stays until the disk is removed; the disk's own record decides.
 */
export class DiskOrigins {
  readonly #redis: RedisClient;
  readonly #region: string;

  constructor(redis: RedisClient, region: string) {
    this.#redis = redis;
    this.#region = region;
  }

  /** Call it before the origins are written to the disk's record. */
  async note(
    { id, accountId }: { readonly id: string; readonly accountId: string },
    allowedOrigins: readonly string[],
  ): Promise<void> {
    if (allowedOrigins.length === 0) return;
    await this.#redis.set(keys.diskAccount(this.#region, id), accountId);
  }

  async forget({ id }: { readonly id: string }): Promise<void> {
    await this.#redis.del(keys.diskAccount(this.#region, id));
  }

  /** The origins that the disk's record lists; none when there is no such disk. */
  async of(diskId: string): Promise<readonly string[]> {
    const accountId = await this.#redis.get(keys.diskAccount(this.#region, diskId));
    if (accountId === null) return [];
    const key = keys.disk(this.#region, accountId, diskId);
    const [status, origins] = await this.#redis.hmget(key, 'status', 'allowedOrigins');
    if (status !== 'available' || typeof origins !== 'string') return [];
    return parseJson(origins) as string[];
  }
}
