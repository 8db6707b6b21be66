import type { RedisClient } from './redis-client.ts';
import { parseJson } from '../json.ts';
import { checkHostReport, type HostOrder, hostOrders, type HostReport } from '../schemas/host.ts';
import { keys } from './keys.ts';
import { Script } from './script.ts';
import { LIMITS } from '../limits.ts';

/** The directory's entry of a host: what it told last, and what is wanted of it. */
export interface HostEntry {
  readonly hostId: string;
  readonly report: HostReport;
  readonly order: HostOrder;
  /** The report after which an operator said that the host is off; see {@link isFenced}. */
  readonly fencedAt?: number;
}

// KEYS reports, orders. ARGV host, order. Only hosts that exist are given orders.
const giveOrder = new Script(`
  if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
  if ARGV[2] == 'up' then redis.call('HDEL', KEYS[2], ARGV[1])
  else redis.call('HSET', KEYS[2], ARGV[1], ARGV[2]) end
  return 1
`);

// KEYS removed, orders, control nodes, reports, addresses. ARGV host, report, address: what is
// empty is not written. With nothing to write, nothing reaches Redis' file or its replicas.
const exchange = new Script(`
  if redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 1 then return false end
  if ARGV[2] ~= '' then redis.call('HSET', KEYS[4], ARGV[1], ARGV[2]) end
  if ARGV[3] ~= '' then redis.call('HSET', KEYS[5], ARGV[1], ARGV[3]) end
  local order = redis.call('HGET', KEYS[2], ARGV[1])
  return { order or '', redis.call('HGETALL', KEYS[3]) }
`);

// KEYS reports, fences. ARGV host, time of its last report
const fence = new Script(`
  if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
  return 1
`);

/** A host's figures and, once it can be reached there, the URL of its internal port. */
export interface HostTells {
  readonly report: HostReport;
  readonly internalUrl: string | undefined;
}

/** The directory's answer to a host. */
export interface HostHears {
  readonly order: HostOrder;
  /** For `ControlNodes.readLive`. */
  readonly controlNodes: ReadonlyMap<string, string>;
}

/** Without an entry the host is up. */
const toOrder = (text: string | null | undefined): HostOrder =>
  hostOrders.find((each) => each === text) ?? 'up';

/** Whether a host has told its figures lately. */
export const isPresent = ({ report }: HostEntry): boolean =>
  report.seenAt + LIMITS.hostTtlMs > Date.now();

/**
 * Whether an operator said that the host is off, so that others may take what it had. The word
 * holds for the silence after one report: a host that reports again is there.
 */
export const isFenced = ({ report, fencedAt }: HostEntry): boolean => report.seenAt === fencedAt;

/**
 * The hosts of a region: where they reach each other, what they tell, and what is wanted of them.
 */
export class Hosts {
  readonly #redis: RedisClient;
  readonly #key: string;
  readonly #reports: string;
  readonly #orders: string;
  readonly #fences: string;
  readonly #removed: string;
  readonly #controlNodes: string;

  constructor(redis: RedisClient, region: string) {
    this.#redis = redis;
    this.#key = keys.hosts(region);
    this.#reports = keys.hostReports(region);
    this.#orders = keys.hostOrders(region);
    this.#fences = keys.hostFences(region);
    this.#removed = keys.removedHosts(region);
    this.#controlNodes = keys.controlNodes(region);
  }

  async withdraw(hostId: string): Promise<void> {
    await this.#redis.hdel(this.#key, hostId);
  }

  /** The internal URLs of all hosts of the region, those that are away included. */
  async urls(): Promise<string[]> {
    const entries = Object.values(await this.#redis.hgetall(this.#key));
    return entries.map((entry) => entry.split(' ')[1] ?? '').filter((url) => URL.canParse(url));
  }

  /** How many hosts have announced themselves and were not shut down since. */
  async count(): Promise<number> {
    return this.#redis.hlen(this.#key);
  }

  /** The internal URL of a host that announced itself lately, or undefined. */
  async find(hostId: string): Promise<string | undefined> {
    const [seenAt = '', internalUrl] = ((await this.#redis.hget(this.#key, hostId)) ?? '').split(
      ' ',
    );
    return Number(seenAt) + LIMITS.hostTtlMs > Date.now() ? internalUrl : undefined;
  }

  /**
   * For the host, at each beat: tells its figures and its address, and hears what it has to know.
   * It stays in the list, also when it is away, until {@link remove}.
   * @param tells undefined: what it told last holds; the age of that shows whether it is there
   * @returns undefined when it was removed, and nothing was noted
   */
  async exchange(hostId: string, tells: HostTells | undefined): Promise<HostHears | undefined> {
    const { report, internalUrl } = tells ?? {};
    const address = internalUrl === undefined ? '' : `${Date.now()} ${internalUrl}`;
    const args = [hostId, report === undefined ? '' : JSON.stringify(report), address];
    const five = [this.#removed, this.#orders, this.#controlNodes, this.#reports, this.#key];
    const heard = (await exchange.run(this.#redis, five, args)) as [string, string[]] | null;
    if (heard === null) return undefined;
    const [order, nodes] = heard;
    return { order: toOrder(order), controlNodes: toMap(nodes) };
  }

  /** For the host: what is wanted of it. */
  async orderOf(hostId: string): Promise<HostOrder> {
    return toOrder(await this.#redis.hget(this.#orders, hostId));
  }

  /** @returns false when there is no such host */
  async give(hostId: string, order: HostOrder): Promise<boolean> {
    return (await giveOrder.run(this.#redis, [this.#reports, this.#orders], [hostId, order])) === 1;
  }

  /**
   * Notes that an operator knows the host to be off since this report.
   * @returns false when it is unknown
   */
  async fence(hostId: string, { seenAt }: HostReport): Promise<boolean> {
    const args = [hostId, seenAt];
    return (await fence.run(this.#redis, [this.#reports, this.#fences], args)) === 1;
  }

  async get(hostId: string): Promise<HostEntry | undefined> {
    const [text, order, fencedAt] = await Promise.all([
      this.#redis.hget(this.#reports, hostId),
      this.orderOf(hostId),
      this.#redis.hget(this.#fences, hostId),
    ]);
    return text === null ? undefined : toEntry(hostId, text, { order, fencedAt });
  }

  /** All hosts that ever told their figures and were not removed, by id. */
  async list(): Promise<HostEntry[]> {
    const [reports, orders, fences] = await Promise.all([
      this.#redis.hgetall(this.#reports),
      this.#redis.hgetall(this.#orders),
      this.#redis.hgetall(this.#fences),
    ]);
    return Object.entries(reports)
      .toSorted(([a], [b]) => a.localeCompare(b))
      .map(([hostId, text]) => {
        const [order, fencedAt] = [toOrder(orders[hostId]), fences[hostId]];
        return toEntry(hostId, text, { order, fencedAt });
      });
  }

  /** Whether an operator has removed the host. */
  async isRemoved(hostId: string): Promise<boolean> {
    return (await this.#redis.sismember(this.#removed, hostId)) === 1;
  }

  /** All hosts that were ever removed. Ids are never used again. */
  async removed(): Promise<string[]> {
    return this.#redis.smembers(this.#removed);
  }

  /** Removes a host for good: an agent with its id is refused from now on. */
  async remove(hostId: string): Promise<void> {
    await this.#redis.sadd(this.#removed, hostId);
    await this.withdraw(hostId);
    await this.#redis.hdel(this.#orders, hostId);
    await this.#redis.hdel(this.#fences, hostId);
    await this.#redis.hdel(this.#reports, hostId);
  }
}

/** @param pairs names and values in turn */
function toMap(pairs: readonly string[]): Map<string, string> {
  const map = new Map<string, string>();
  for (let i = 0; i < pairs.length; i += 2) map.set(pairs[i] ?? '', pairs[i + 1] ?? '');
  return map;
}

/** @throws Error, not AppError, for an unreadable report: the caller is not at fault */
function toEntry(
  hostId: string,
  text: string,
  { order, fencedAt }: { readonly order: HostOrder; readonly fencedAt?: string | null | undefined },
): HostEntry {
  try {
    const report = checkHostReport(parseJson(text), 'report');
    return { hostId, report, order, ...(fencedAt ? { fencedAt: Number(fencedAt) } : {}) };
  } catch (cause) {
    throw new Error(`the directory's report of host ${hostId} cannot be read`, { cause });
  }
}
