import { Script } from './script.ts';

/*
 * The Lua scripts that change a disk in the directory, each in one step. {@link Disks} runs them.
 */

// The bytes in use on the disks of a list, as they were last measured. Reads the disks themselves,
// all of one hash slot, so that no sum of its own can differ from them.
export const SUM_BYTES = `
  local function sumBytes(list, prefix)
    local sum = 0
    for _, member in ipairs(redis.call('ZRANGE', list, 0, -1)) do
      local id = string.match(member, ':(.+)$')
      sum = sum + tonumber(redis.call('HGET', prefix .. id, 'usedBytes') or '0')
    end
    return string.format('%.0f', sum)
  end
`;
// KEYS list; ARGV prefix of the keys of disks
export const sumDiskBytes = new Script(`
  ${SUM_BYTES}
  return sumBytes(KEYS[1], ARGV[1])
`);
// KEYS names, list, disk, users, limits of the account; ARGV name, id, member, limit, record fields
// as JSON, users as JSON, prefix of the keys of disks
export const create = new Script(`
  ${SUM_BYTES}
  local taken = redis.call('HGET', KEYS[1], ARGV[1])
  if taken then return taken end
  local count = redis.call('ZCARD', KEYS[2])
  local disks, bytes = unpack(redis.call('HMGET', KEYS[5], 'disks', 'diskBytes'))
  if disks and count >= tonumber(disks) then return 'over disks ' .. disks .. ' ' .. count end
  if bytes then
    local used = sumBytes(KEYS[2], ARGV[7])
    if tonumber(used) >= tonumber(bytes) then return 'over diskBytes ' .. bytes .. ' ' .. used end
  end
  if count >= tonumber(ARGV[4]) then return 'limit' end
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
  redis.call('ZADD', KEYS[2], 0, ARGV[3])
  redis.call('HSET', KEYS[3], unpack(cjson.decode(ARGV[5])))
  redis.call('DEL', KEYS[4])
  local users = cjson.decode(ARGV[6])
  if #users > 0 then redis.call('HSET', KEYS[4], unpack(users)) end
  return ARGV[2]
`);
// KEYS disk, users; ARGV now, until. Takes a creation that nobody is at. Removes and returns its
// first users, because their tokens were shown to nobody.
export const takeCreation = new Script(`
  local status, busyUntil = unpack(redis.call('HMGET', KEYS[1], 'status', 'creatingUntil'))
  if status ~= 'creating' then return 'done' end
  if tonumber(busyUntil or '0') > tonumber(ARGV[1]) then return 'busy' end
  local former = redis.call('HVALS', KEYS[2])
  redis.call('HSET', KEYS[1], 'creatingUntil', ARGV[2])
  redis.call('DEL', KEYS[2])
  redis.call('HINCRBY', KEYS[1], 'revision', 1)
  return former
`);
// KEYS disk, users; ARGV until, users as JSON. Only for the call that took the creation until then.
export const setUsersOfCreation = new Script(`
  local status, busyUntil = unpack(redis.call('HMGET', KEYS[1], 'status', 'creatingUntil'))
  if status ~= 'creating' or busyUntil ~= ARGV[1] then return 0 end
  local users = cjson.decode(ARGV[2])
  if #users > 0 then redis.call('HSET', KEYS[2], unpack(users)) end
  return 1
`);
export const releaseCreation = new Script(`
  if redis.call('HGET', KEYS[1], 'status') ~= 'creating' then return 0 end
  redis.call('HSET', KEYS[1], 'creatingUntil', 0)
  return 1
`);
export const markAvailable = new Script(`
  if redis.call('HGET', KEYS[1], 'status') ~= 'creating' then return 0 end
  redis.call('HSET', KEYS[1], 'status', 'available')
  return 1
`);
const DROP_USER = `
  local function dropUser(field, clients)
    for _, each in ipairs(redis.call('HKEYS', KEYS[1])) do
      if string.sub(each, 1, #clients) == clients then redis.call('HDEL', KEYS[1], each) end
    end
    return redis.call('HDEL', KEYS[2], field)
  end
`;
// KEYS disk, users; ARGV field, user JSON, limit; then, of each user that has ended, field, JSON
// and prefix of the fields of its clients. These users leave when the new one comes.
export const addUser = new Script(`
  ${DROP_USER}
  if redis.call('HGET', KEYS[1], 'status') ~= 'available' then return 'missing' end
  local hasEnded, endedCount = {}, 0
  for i = 4, #ARGV, 3 do
    if redis.call('HGET', KEYS[2], ARGV[i]) == ARGV[i + 1] then
      hasEnded[ARGV[i]] = true
      endedCount = endedCount + 1
    end
  end
  local present = redis.call('HGET', KEYS[2], ARGV[1])
  if present and not hasEnded[ARGV[1]] then return present end
  if redis.call('HLEN', KEYS[2]) - endedCount >= tonumber(ARGV[3]) then return 'limit' end
  for i = 4, #ARGV, 3 do
    if hasEnded[ARGV[i]] then dropUser(ARGV[i], ARGV[i + 2]) end
  end
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
  redis.call('HINCRBY', KEYS[1], 'revision', 1)
  return ARGV[2]
`);
// KEYS disk, users; ARGV field, prefix of the fields of the user's clients
export const removeUser = new Script(`
  ${DROP_USER}
  if redis.call('HGET', KEYS[1], 'status') ~= 'available' then return 'missing' end
  local removed = dropUser(ARGV[1], ARGV[2])
  redis.call('HINCRBY', KEYS[1], 'revision', 1)
  return removed
`);
// KEYS disk; ARGV field, its new value
export const setSetting = new Script(`
  if redis.call('HGET', KEYS[1], 'status') ~= 'available' then return 0 end
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
  redis.call('HINCRBY', KEYS[1], 'revision', 1)
  return 1
`);
// KEYS hash, disk; ARGV field, its value, its next value
export const replaceField = new Script(`
  if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
  redis.call('HINCRBY', KEYS[2], 'revision', 1)
  return 1
`);
export const setMounts = new Script(`
  if redis.call('HGET', KEYS[1], 'status') ~= 'available' then return 0 end
  redis.call('HSET', KEYS[1], 'mounts', ARGV[1])
  redis.call('HINCRBY', KEYS[1], 'revision', 1)
  return 1
`);
export const recordBucketStatus = new Script(`
  if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
  redis.call('HSET', KEYS[1], 'mountStatus', ARGV[1])
  return 1
`);
// KEYS names, list, disk, lease; ARGV id, member. The name is free again at once. A disk that a
// sandbox holds stays: checked here, so that no sandbox can begin to use it meanwhile.
export const beginDelete = new Script(`
  local name = redis.call('HGET', KEYS[3], 'name')
  if not name then return 0 end
  local lease = redis.call('GET', KEYS[4])
  if lease and string.match(lease, ' held$') then return 'held' end
  redis.call('HSET', KEYS[3], 'status', 'deleting')
  redis.call('ZREM', KEYS[2], ARGV[2])
  if redis.call('HGET', KEYS[1], name) == ARGV[1] then redis.call('HDEL', KEYS[1], name) end
  return 1
`);
// KEYS disk; ARGV at, used bytes or empty, requests, milliseconds. Hosts may write in another order
// than they had the disk: the figures of the latest use stay.
export const recordUses = new Script(`
  if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
  local last = redis.call('HGET', KEYS[1], 'lastAccessed')
  if not last or last <= ARGV[1] then
    redis.call('HSET', KEYS[1], 'lastAccessed', ARGV[1])
    if ARGV[2] ~= '' then redis.call('HSET', KEYS[1], 'usedBytes', ARGV[2]) end
  end
  redis.call('HINCRBY', KEYS[1], 'requests', ARGV[3])
  redis.call('HINCRBY', KEYS[1], 'requestMsTotal', ARGV[4])
  return 1
`);
