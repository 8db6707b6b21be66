import type { ApiKeys } from './api-keys.ts';
import type { RedisClient } from './redis-client.ts';
import { routeIdOf } from '../ids.ts';
import { DIRECTORY_LIMITS } from './limits.ts';
import { SCHEMA_LIMITS } from '../schemas/limits.ts';
import type { SandboxRecord } from '../schemas/sandbox-record.ts';
import { sha256 } from '../secrets.ts';
import { keys } from './keys.ts';
import { Script } from './script.ts';

// Each route id has one hash, so that a request is judged by one command:
//   sandboxId, accountId   whose ports these are
//   hostId, ingress        by the owner: itself; 1 when services of the sandbox publish their ports
//   revision               of the owner's record; a former owner's is older
//   port:<port>            exposed through the API: ids of the keys that did, or 1 from before keys
//                          were noted
//   service:<port>         a service was found to publish it
//   token:<id>             a port token: "<port> <created> <expires>" in milliseconds, 0: never
const PORT = 'port:';
const SERVICE = 'service:';

/** The field of a port token. @param id SHA-256 of the token */
export const tokenField = (id: string): string => `token:${id}`;

/** The parsed text in the field of a port token. */
export interface TokenTerms {
  readonly port: number;
  readonly createdAt: number;
  /** Undefined: never. */
  readonly expiresAt: number | undefined;
}

/** @param text as {@link tokenField} has it */
export function readTerms(text: string): TokenTerms {
  const [port = 0, createdAt = 0, expiresAt = 0] = text.split(' ').map(Number);
  return { port, createdAt, expiresAt: expiresAt === 0 ? undefined : expiresAt };
}

// ARGV sandbox, account, time to live, key, ports
const prepare = new Script(`
  redis.call('HSET', KEYS[1], 'sandboxId', ARGV[1], 'accountId', ARGV[2])
  for i = 5, #ARGV do redis.call('HSET', KEYS[1], 'port:' .. ARGV[i], ARGV[4]) end
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  return 1
`);
// ARGV sandbox, account, host, ingress, revision. Writes nothing when nothing has changed, since
// owners publish often: the revision with another host alone.
const announce = new Script(`
  local names = { 'sandboxId', 'accountId', 'hostId', 'ingress' }
  local owner, revision = unpack(redis.call('HMGET', KEYS[1], 'hostId', 'revision'))
  if owner ~= ARGV[3] then
    if tonumber(ARGV[5]) < tonumber(revision or '0') then return 0 end
    redis.call('HSET', KEYS[1], 'revision', ARGV[5])
  end
  local present = redis.call('HMGET', KEYS[1], unpack(names))
  for i = 1, #names do
    if present[i] ~= ARGV[i] then redis.call('HSET', KEYS[1], names[i], ARGV[i]) end
  end
  if redis.call('PTTL', KEYS[1]) >= 0 then redis.call('PERSIST', KEYS[1]) end
  return 1
`);
// ARGV field, prefix, limit, value
const addField = new Script(`
  if redis.call('HEXISTS', KEYS[1], 'sandboxId') == 0 then return 'missing' end
  if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return 'present' end
  local count = 0
  for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
    if string.sub(name, 1, #ARGV[2]) == ARGV[2] then count = count + 1 end
  end
  if count >= tonumber(ARGV[3]) then return 'limit' end
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[4])
  return 'added'
`);
// Replaces the keys of an exposed port. ARGV field, keys as they were read, keys; none: not exposed
const replaceKeys = new Script(`
  if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
  if ARGV[3] == '' then redis.call('HDEL', KEYS[1], ARGV[1])
  else redis.call('HSET', KEYS[1], ARGV[1], ARGV[3]) end
  return 1
`);
// Names and values alternate. ARGV prefix
const listExposed = new Script(`
  local found = {}
  local all = redis.call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, #ARGV[1]) == ARGV[1] then
      found[#found + 1] = string.sub(all[i], #ARGV[1] + 1)
      found[#found + 1] = all[i + 1]
    end
  end
  return found
`);
// Tokens stay in the hash: only names of ports are answered. ARGV prefix
const listPorts = new Script(`
  local ports = {}
  for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
    if string.sub(name, 1, #ARGV[1]) == ARGV[1] then
      ports[#ports + 1] = tonumber(string.sub(name, #ARGV[1] + 1))
    end
  end
  return ports
`);

type AddedPort = 'added' | 'present' | 'limit' | 'missing';

/** The value of a port that was exposed before keys were noted; no key ends it. */
const WITHOUT_KEY = '1';

interface ExposedPort {
  readonly port: number;
  /** Ids of the keys that exposed it, with spaces between them. */
  readonly keys: string;
}

/** The facts by which a request to a port is judged. */
export interface PortRoute {
  readonly accountId: string;
  readonly sandboxId: string;
  /** The sandbox's owner. */
  readonly hostId: string;
  readonly isExposed: boolean;
  /** Services of the sandbox publish their ports (`enable_service_ingress`). */
  readonly hasServiceIngress: boolean;
  /** A service was found to publish this port. */
  readonly isServicePort: boolean;
  /** Terms of the token that came with the request. */
  readonly token: TokenTerms | undefined;
}

/** For the owner: says where the sandbox is, and whether its services publish their ports. */
export async function announceRoute(
  redis: RedisClient,
  region: string,
  { id, accountId, hostId, config, revision }: SandboxRecord,
): Promise<void> {
  const hasIngress = config.enableServiceIngress === true;
  const args = [id, accountId, hostId, hasIngress ? '1' : '0', revision];
  await announce.run(redis, [keys.sandboxRoute(region, routeIdOf(id))], args);
}

/** Removes the route with all ports and tokens. */
export async function removeRoute(
  redis: RedisClient,
  region: string,
  sandboxId: string,
): Promise<void> {
  const routeId = routeIdOf(sandboxId);
  await redis.del(
    keys.sandboxRoute(region, routeId),
    keys.portTokens(region, routeId),
    keys.portTokenEnds(region, routeId),
  );
}

/**
 * The index from the hostnames of ports to sandboxes, with the ports that need no token. Owners
 * announce the route of each sandbox with its record; ports live in Redis alone.
 */
export class SandboxRoutes {
  readonly #redis: RedisClient;
  readonly #region: string;
  readonly #apiKeys: ApiKeys;

  constructor(redis: RedisClient, region: string, apiKeys: ApiKeys) {
    this.#redis = redis;
    this.#region = region;
    this.#apiKeys = apiKeys;
  }

  /**
   * Exposes ports of a sandbox that is about to be created; they lapse unless its owner announces
   * it.
   */
  async prepare(
    { accountId, sandboxId }: { readonly accountId: string; readonly sandboxId: string },
    keyId: string,
    ports: readonly number[],
  ): Promise<void> {
    const args = [sandboxId, accountId, DIRECTORY_LIMITS.sandboxRoutePreparedMs, keyId, ...ports];
    await prepare.run(this.#redis, [this.#key(sandboxId)], args);
  }

  /**
   * Makes a port public while the key is in force. Other keys that exposed it keep it public as
   * long as any of them is.
   * @returns `missing` while the owner has not announced the sandbox
   */
  async expose(sandboxId: string, port: number, keyId: string): Promise<AddedPort> {
    await this.exposedPorts(sandboxId); // Ports whose keys have ended do not count.
    const added = await this.#add(sandboxId, PORT, port, SCHEMA_LIMITS.portsPerSandboxMax, keyId);
    if (added === 'present') {
      await this.#changeKeys(sandboxId, port, (keyIds) =>
        keyIds.includes(WITHOUT_KEY) || keyIds.includes(keyId) ? keyIds : [...keyIds, keyId],
      );
    }
    return added;
  }

  async unexpose(sandboxId: string, port: number): Promise<void> {
    await this.#redis.hdel(this.#key(sandboxId), `${PORT}${port}`);
  }

  /** The exposed ports in ascending order. Removes those whose keys have all ended. */
  async exposedPorts(sandboxId: string): Promise<number[]> {
    const exposed = await this.#exposed(sandboxId);
    const ports: number[] = [];
    for (const { port, keys: text } of exposed) {
      if (await this.#isAnyLive(text.split(' '))) ports.push(port);
      else await replaceKeys.run(this.#redis, [this.#key(sandboxId)], [`${PORT}${port}`, text, '']);
    }
    return ports;
  }

  /**
   * Takes a key away from the ports that it exposed, for example because it is deleted.
   * @returns the ports that are no longer exposed, in ascending order
   */
  async endExposedBy(sandboxId: string, keyId: string): Promise<number[]> {
    const ended: number[] = [];
    for (const { port, keys: text } of await this.#exposed(sandboxId)) {
      if (!text.split(' ').includes(keyId)) continue;
      const left = await this.#changeKeys(sandboxId, port, (keyIds) =>
        keyIds.filter((each) => each !== keyId),
      );
      if (left.length === 0) ended.push(port);
    }
    return ended;
  }

  /** For an ingress that has found a service behind a port. */
  async addServicePort(sandboxId: string, port: number): Promise<void> {
    await this.#add(sandboxId, SERVICE, port, DIRECTORY_LIMITS.servicePortsPerSandboxMax, '1');
  }

  /** For an ingress that has found nothing behind a port. */
  async removeServicePort(sandboxId: string, port: number): Promise<void> {
    await this.#redis.hdel(this.#key(sandboxId), `${SERVICE}${port}`);
  }

  /** The ports that services were found to publish, in ascending order. */
  async servicePorts(sandboxId: string): Promise<number[]> {
    return this.#list(sandboxId, SERVICE);
  }

  /**
   * Finds what a request is judged by, in one command, and asks about a public port's key at most
   * once a second.
   * @param token that came with it
   * @returns undefined when no owner has announced such a sandbox
   */
  async find(routeId: string, port: number, token?: string): Promise<PortRoute | undefined> {
    const fields = ['sandboxId', 'accountId', 'hostId', 'ingress'];
    const [sandboxId, accountId, hostId, ingress, exposed, service, terms] =
      await this.#redis.hmget(
        keys.sandboxRoute(this.#region, routeId),
        ...fields,
        `${PORT}${port}`,
        `${SERVICE}${port}`,
        ...(token === undefined ? [] : [tokenField(sha256(token))]),
      );
    if (typeof sandboxId !== 'string' || typeof accountId !== 'string') return undefined;
    if (typeof hostId !== 'string') return undefined;
    return {
      ...{ sandboxId, accountId, hostId },
      hasServiceIngress: ingress === '1',
      isExposed: typeof exposed === 'string' && (await this.#isAnyLive(exposed.split(' '))),
      isServicePort: typeof service === 'string',
      token: typeof terms === 'string' ? readTerms(terms) : undefined,
    };
  }

  async #add(
    sandboxId: string,
    prefix: string,
    port: number,
    max: number,
    value: string,
  ): Promise<AddedPort> {
    const args = [`${prefix}${port}`, prefix, max, value];
    const result = await addField.run(this.#redis, [this.#key(sandboxId)], args);
    return result as AddedPort;
  }

  async #exposed(sandboxId: string): Promise<ExposedPort[]> {
    const found = await listExposed.run(this.#redis, [this.#key(sandboxId)], [PORT]);
    const texts = found as string[];
    return texts
      .flatMap((text, at) =>
        at % 2 === 0 ? [{ port: Number(text), keys: texts[at + 1] ?? '' }] : [],
      )
      .sort((a, b) => a.port - b.port);
  }

  /** Changes the keys of a port, however often others do at the same time. @returns the new ones */
  async #changeKeys(
    sandboxId: string,
    port: number,
    change: (keyIds: string[]) => string[],
  ): Promise<string[]> {
    const [key, field] = [this.#key(sandboxId), `${PORT}${port}`];
    for (;;) {
      const text = await this.#redis.hget(key, field);
      if (text === null) return [];
      const next = change(text.split(' '));
      const args = [field, text, next.join(' ')];
      if ((await replaceKeys.run(this.#redis, [key], args)) === 1) return next;
    }
  }

  async #isAnyLive(keyIds: readonly string[]): Promise<boolean> {
    for (const keyId of keyIds) {
      if (keyId === WITHOUT_KEY || (await this.#apiKeys.isLive(keyId))) return true;
    }
    return false;
  }

  async #list(sandboxId: string, prefix: string): Promise<number[]> {
    const ports = await listPorts.run(this.#redis, [this.#key(sandboxId)], [prefix]);
    return (ports as number[]).sort((a, b) => a - b);
  }

  #key(sandboxId: string): string {
    return keys.sandboxRoute(this.#region, routeIdOf(sandboxId));
  }
}
