import type { RedisClient } from './redis-client.ts';
import { DIRECTORY_LIMITS } from './limits.ts';
import { sha256 } from '../secrets.ts';
import { Script } from './script.ts';

/*
 * The clients of a disk's users, shown as `connectedClients`. Each is a field of the disk's own
 * hash, so that showing a disk costs no further read: `client:<user>@<address>` holds the times at
 * which the client was first and last seen, and its address.
 */

/** A disk user's client that was seen lately. Times are milliseconds since the epoch. */
export interface DiskClient {
  readonly id: string;
  readonly ipAddress: string;
  readonly connectedAt: number;
}

const FIELD = 'client:';
const ID_LENGTH = 16;

// KEYS disk; ARGV field, address, now, how long a client counts, limit. Clients not seen for that
// long are removed.
const record = new Script(`
  if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
  local now, seenMs = tonumber(ARGV[3]), tonumber(ARGV[4])
  local since, count = nil, 0
  local fields = redis.call('HGETALL', KEYS[1])
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 7) == 'client:' then
      local connectedAt, seenAt = string.match(fields[i + 1], '^(%d+) (%d+) ')
      if tonumber(seenAt) + seenMs < now then
        redis.call('HDEL', KEYS[1], fields[i])
      else
        count = count + 1
        if fields[i] == ARGV[1] then since = connectedAt end
      end
    end
  end
  if not since and count >= tonumber(ARGV[5]) then return 0 end
  redis.call('HSET', KEYS[1], ARGV[1], (since or ARGV[3]) .. ' ' .. ARGV[3] .. ' ' .. ARGV[2])
  return 1
`);

/** The prefix of the fields of a user's clients. */
export const clientsOf = (identifier: string): string => `${FIELD}${sha256(identifier)}@`;

export async function recordClient(
  redis: RedisClient,
  diskKey: string,
  { identifier, ipAddress }: { identifier: string; ipAddress: string },
): Promise<void> {
  await record.run(
    redis,
    [diskKey],
    [
      `${clientsOf(identifier)}${ipAddress}`,
      ipAddress,
      Date.now(),
      DIRECTORY_LIMITS.clientSeenMs,
      DIRECTORY_LIMITS.clientsPerDiskMax,
    ],
  );
}

/** The clients seen lately among a disk's fields. */
export function toClients(fields: Record<string, string>): DiskClient[] {
  const clients: DiskClient[] = [];
  for (const field in fields) {
    if (!field.startsWith(FIELD)) continue;
    const [connectedAt, seenAt, ipAddress = ''] = (fields[field] ?? '').split(' ');
    if (Number(seenAt) + DIRECTORY_LIMITS.clientSeenMs < Date.now()) continue;
    const id = sha256(field).slice(0, ID_LENGTH);
    clients.push({ id, ipAddress, connectedAt: Number(connectedAt) });
  }
  return clients;
}
