import type { RedisClient } from './redis-client.ts';
import { keys } from './keys.ts';
import { Script } from './script.ts';

/** Memory and processors that a sandbox takes from its host, or that a host has for sandboxes. */
export interface SandboxResources {
  readonly memoryMib: number;
  readonly vcpus: number;
}

/** The field with the host's total. The other fields of the hash are one per sandbox. */
const ANNOUNCED = 'announced';

// KEYS capacity: "<memory> <vcpus>" under ANNOUNCED, "<until> <memory> <vcpus>" by sandbox id,
// where `until` is 0 once the owner holds it. Times are those of Redis.
const SUM = `
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local memory, vcpus = 0, 0
  local entries = redis.call('HGETALL', KEYS[1])
  for i = 1, #entries, 2 do
    if entries[i] ~= '${ANNOUNCED}' and entries[i] ~= ARGV[1] then
      local ends, entryMemory, entryVcpus = string.match(entries[i + 1], '^(%d+) (%d+) (%d+)$')
      if not ends or (ends ~= '0' and tonumber(ends) <= now) then
        redis.call('HDEL', KEYS[1], entries[i])
      else
        memory = memory + tonumber(entryMemory)
        vcpus = vcpus + tonumber(entryVcpus)
      end
    end
  end
`;
// ARGV announced. Nothing is written when it is there already.
const announce = new Script(`
  if redis.call('HGET', KEYS[1], '${ANNOUNCED}') == ARGV[1] then return 0 end
  return redis.call('HSET', KEYS[1], '${ANNOUNCED}', ARGV[1])
`);
// ARGV id, memory, vcpus, time to live
const reserve = new Script(`
  ${SUM}
  local has = redis.call('HGET', KEYS[1], '${ANNOUNCED}')
  if not has then return 0 end
  local hasMemory, hasVcpus = string.match(has, '^(%d+) (%d+)$')
  if memory + tonumber(ARGV[2]) > tonumber(hasMemory) then return 0 end
  if vcpus + tonumber(ARGV[3]) > tonumber(hasVcpus) then return 0 end
  local present = redis.call('HGET', KEYS[1], ARGV[1])
  if present and string.match(present, '^0 ') then return 1 end
  local ends = string.format('%.0f', now + tonumber(ARGV[4]))
  redis.call('HSET', KEYS[1], ARGV[1], ends .. ' ' .. ARGV[2] .. ' ' .. ARGV[3])
  return 1
`);
const used = new Script(`
  ${SUM}
  return { memory, vcpus }
`);
// ARGV id
const releaseReservation = new Script(`
  local present = redis.call('HGET', KEYS[1], ARGV[1])
  if present and not string.match(present, '^0 ') then redis.call('HDEL', KEYS[1], ARGV[1]) end
  return 1
`);
// ARGV fields and values of the held capacity. Reservations stay: their sandboxes may be on the
// way.
const replace = new Script(`
  local entries = redis.call('HGETALL', KEYS[1])
  for i = 1, #entries, 2 do
    if string.match(entries[i + 1], '^0 %d+ %d+$') then redis.call('HDEL', KEYS[1], entries[i]) end
  end
  for i = 1, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
  return 1
`);

const heldValue = ({ memoryMib, vcpus }: SandboxResources): string => `0 ${memoryMib} ${vcpus}`;

/**
 * Counts how much of each host's capacity is held or reserved, in one place for all control nodes.
 */
export class SandboxCapacity {
  readonly #redis: RedisClient;

  constructor(redis: RedisClient) {
    this.#redis = redis;
  }

  /**
   * For the host: announces its capacity for all its sandboxes together.
   * @returns true when the directory did not know the host: it is new or has lost its data
   */
  async announce(hostId: string, { memoryMib, vcpus }: SandboxResources): Promise<boolean> {
    const args = [`${memoryMib} ${vcpus}`];
    return (await announce.run(this.#redis, [keys.sandboxCapacity(hostId)], args)) === 1;
  }

  /**
   * Reserves capacity for a sandbox that is being created. The reservation lapses after `ttlMs`
   * unless the owner holds it before.
   * @returns false when the host does not have that much left
   */
  async reserve(
    hostId: string,
    sandboxId: string,
    { memoryMib, vcpus }: SandboxResources,
    ttlMs: number,
  ): Promise<boolean> {
    const args = [sandboxId, memoryMib, vcpus, ttlMs];
    return (await reserve.run(this.#redis, [keys.sandboxCapacity(hostId)], args)) === 1;
  }

  /** Releases a reservation. Capacity that the owner holds by now is not touched. */
  async releaseReservation(hostId: string, sandboxId: string): Promise<void> {
    await releaseReservation.run(this.#redis, [keys.sandboxCapacity(hostId)], [sandboxId]);
  }

  /** For the owner: holds this much for the sandbox until it is released. */
  async hold(hostId: string, sandboxId: string, need: SandboxResources): Promise<void> {
    await this.#redis.hset(keys.sandboxCapacity(hostId), sandboxId, heldValue(need));
  }

  /** For the owner: releases what the sandbox holds. */
  async release(hostId: string, sandboxId: string): Promise<void> {
    await this.#redis.hdel(keys.sandboxCapacity(hostId), sandboxId);
  }

  /** For the host: replaces all that its sandboxes hold, at start and after Redis lost its data. */
  async replace(
    hostId: string,
    held: readonly (SandboxResources & { readonly sandboxId: string })[],
  ): Promise<void> {
    const args = held.flatMap((sandbox) => [sandbox.sandboxId, heldValue(sandbox)]);
    await replace.run(this.#redis, [keys.sandboxCapacity(hostId)], args);
  }

  /** Forgets a host that will not come back, with all that it held. */
  async forget(hostId: string): Promise<void> {
    await this.#redis.del(keys.sandboxCapacity(hostId));
  }

  /** Resources that are held or reserved on the host now. */
  async used(hostId: string): Promise<SandboxResources> {
    const sums = await used.run(this.#redis, [keys.sandboxCapacity(hostId)], ['']);
    const [memoryMib = 0, vcpus = 0] = sums as number[];
    return { memoryMib, vcpus };
  }
}
