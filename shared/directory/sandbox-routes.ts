import type { RedisClient } from './redis-client.ts';
import { routeIdOf } from '../ids.ts';
import { LIMITS } from '../limits.ts';
import type { SandboxRecord } from '../schemas/sandbox-record.ts';
import { sha256 } from '../secrets.ts';
import { keys } from './keys.ts';
import { Script } from './script.ts';

// Each route id has one hash, so that a request is judged by one command:
//   sandboxId, accountId   whose ports these are
//   hostId, ingress        by the owner: itself; 1 when services of the sandbox publish their ports
//   revision               of the owner's record; a former owner's is older
//   port:<port>            exposed through the API
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

// ARGV sandbox, account, time to live, ports
const prepare = new Script(`
  redis.call('HSET', KEYS[1], 'sandboxId', ARGV[1], 'accountId', ARGV[2])
  for i = 4, #ARGV do redis.call('HSET', KEYS[1], 'port:' .. ARGV[i], '1') end
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
// ARGV field, prefix, limit
const addField = new Script(`
  if redis.call('HEXISTS', KEYS[1], 'sandboxId') == 0 then return 'missing' end
  if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return 'present' end
  local count = 0
  for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
    if string.sub(name, 1, #ARGV[2]) == ARGV[2] then count = count + 1 end
  end
  if count >= tonumber(ARGV[3]) then return 'limit' end
  redis.call('HSET', KEYS[1], ARGV[1], '1')
  return 'added'
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

/**
 * The index from the hostnames of ports to sandboxes, with the ports that need no token. Owners
 * announce the route of each sandbox with its record; ports live in Redis alone.
 */
export class SandboxRoutes {
  readonly #redis: RedisClient;
  readonly #region: string;

  constructor(redis: RedisClient, region: string) {
    this.#redis = redis;
    this.#region = region;
  }

  /**
   * Exposes ports of a sandbox that is about to be created; they lapse unless its owner announces
   * it.
   */
  async prepare(
    { accountId, sandboxId }: { readonly accountId: string; readonly sandboxId: string },
    ports: readonly number[],
  ): Promise<void> {
    const args = [sandboxId, accountId, LIMITS.sandboxRoutePreparedMs, ...ports];
    await prepare.run(this.#redis, [this.#key(sandboxId)], args);
  }

  /** For the owner. */
  async announce({ id, accountId, hostId, config, revision }: SandboxRecord): Promise<void> {
    const hasIngress = config.enableServiceIngress === true;
    const args = [id, accountId, hostId, hasIngress ? '1' : '0', revision];
    await announce.run(this.#redis, [this.#key(id)], args);
  }

  /** Removes the route with all ports and tokens. */
  async remove(sandboxId: string): Promise<void> {
    const routeId = routeIdOf(sandboxId);
    await this.#redis.del(
      this.#key(sandboxId),
      keys.portTokens(this.#region, routeId),
      keys.portTokenEnds(this.#region, routeId),
    );
  }

  /** Makes a port public. @returns `missing` while the owner has not announced the sandbox */
  async expose(
    sandboxId: string,
    port: number,
  ): Promise<'added' | 'present' | 'limit' | 'missing'> {
    return this.#add(sandboxId, PORT, port, LIMITS.portsPerSandboxMax);
  }

  async unexpose(sandboxId: string, port: number): Promise<void> {
    await this.#redis.hdel(this.#key(sandboxId), `${PORT}${port}`);
  }

  /** The exposed ports in ascending order. */
  async exposedPorts(sandboxId: string): Promise<number[]> {
    return this.#list(sandboxId, PORT);
  }

  /** For an ingress that has found a service behind a port. */
  async addServicePort(sandboxId: string, port: number): Promise<void> {
    await this.#add(sandboxId, SERVICE, port, LIMITS.servicePortsPerSandboxMax);
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
   * Finds what a request is judged by, in one command.
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
      isExposed: typeof exposed === 'string',
      isServicePort: typeof service === 'string',
      token: typeof terms === 'string' ? readTerms(terms) : undefined,
    };
  }

  async #add(
    sandboxId: string,
    prefix: string,
    port: number,
    max: number,
  ): Promise<'added' | 'present' | 'limit' | 'missing'> {
    const args = [`${prefix}${port}`, prefix, max];
    const result = await addField.run(this.#redis, [this.#key(sandboxId)], args);
    return result as 'added' | 'present' | 'limit' | 'missing';
  }

  async #list(sandboxId: string, prefix: string): Promise<number[]> {
    const ports = await listPorts.run(this.#redis, [this.#key(sandboxId)], [prefix]);
    return (ports as number[]).sort((a, b) => a - b);
  }

  #key(sandboxId: string): string {
    return keys.sandboxRoute(this.#region, routeIdOf(sandboxId));
  }
}
