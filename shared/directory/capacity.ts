import type { Redis } from 'ioredis';
import { keys } from './keys.ts';
import { Script } from './script.ts';

/** What a sandbox takes of its host, or what a host has for sandboxes. */
export interface SandboxRoom {
  readonly memoryMib: number;
  readonly vcpus: number;
}

/** The field of what the host has; beside it one field for each sandbox. */
const ANNOUNCED = 'announced';

// KEYS capacity: "<memory> <vcpus>" under ANNOUNCED, "<until> <memory> <vcpus>" by sandbox id; a
// sandbox that its owner holds has 0 for until. Times are Redis's own.
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
const letGo = new Script(`
  local present = redis.call('HGET', KEYS[1], ARGV[1])
  if present and not string.match(present, '^0 ') then redis.call('HDEL', KEYS[1], ARGV[1]) end
  return 1
`);
// ARGV fields and values of what is held. Reservations stay: their sandboxes may be on their way.
const replace = new Script(`
  local entries = redis.call('HGETALL', KEYS[1])
  for i = 1, #entries, 2 do
    if string.match(entries[i + 1], '^0 %d+ %d+$') then redis.call('HDEL', KEYS[1], entries[i]) end
  end
  for i = 1, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
  return 1
`);

const heldValue = ({ memoryMib, vcpus }: SandboxRoom): string => `0 ${memoryMib} ${vcpus}`;

/** How much of each host its sandboxes take, counted in one place for all control nodes. */
export class SandboxCapacity {
  readonly #redis: Redis;

  constructor(redis: Redis) {
    this.#redis = redis;
  }

  /**
   * For the host: what it has for all its sandboxes together.
   * @returns whether nothing was known of it: the directory is new, or has lost its data
   */
  async announce(hostId: string, { memoryMib, vcpus }: SandboxRoom): Promise<boolean> {
    const key = keys.sandboxCapacity(hostId);
    return (await this.#redis.hset(key, ANNOUNCED, `${memoryMib} ${vcpus}`)) === 1;
  }

  /**
   * Reserves room for a sandbox to be created; lapses unless its owner holds it in time.
   * @returns false when the host has not so much left
   */
  async reserve(
    hostId: string,
    sandboxId: string,
    { memoryMib, vcpus }: SandboxRoom,
    ttlMs: number,
  ): Promise<boolean> {
    const args = [sandboxId, memoryMib, vcpus, ttlMs];
    return (await reserve.run(this.#redis, [keys.sandboxCapacity(hostId)], args)) === 1;
  }

  /** Gives a reservation up; what its owner holds since stays. */
  async letGo(hostId: string, sandboxId: string): Promise<void> {
    await letGo.run(this.#redis, [keys.sandboxCapacity(hostId)], [sandboxId]);
  }

  /** For the owner: the sandbox takes this much until it is released. */
  async hold(hostId: string, sandboxId: string, need: SandboxRoom): Promise<void> {
    await this.#redis.hset(keys.sandboxCapacity(hostId), sandboxId, heldValue(need));
  }

  /** For the owner: the sandbox takes nothing any more. */
  async release(hostId: string, sandboxId: string): Promise<void> {
    await this.#redis.hdel(keys.sandboxCapacity(hostId), sandboxId);
  }

  /** For the host: what all its sandboxes take, at its start and when Redis lost its data. */
  async replace(
    hostId: string,
    held: readonly (SandboxRoom & { readonly id: string })[],
  ): Promise<void> {
    const args = held.flatMap((sandbox) => [sandbox.id, heldValue(sandbox)]);
    await replace.run(this.#redis, [keys.sandboxCapacity(hostId)], args);
  }

  /** What is held and reserved on the host now. */
  async used(hostId: string): Promise<SandboxRoom> {
    const sums = await used.run(this.#redis, [keys.sandboxCapacity(hostId)], ['']);
    const [memoryMib = 0, vcpus = 0] = sums as number[];
    return { memoryMib, vcpus };
  }
}
