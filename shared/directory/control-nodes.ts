import type { RedisClient } from './redis-client.ts';
import { DIRECTORY_LIMITS } from './limits.ts';
import { keys } from './keys.ts';
import { parseJson } from '../json.ts';

/** A control node that agents connect to. */
export interface ControlNode {
  readonly nodeId: string;
  /** URL of the agent link, `ws://…`. */
  readonly linkUrl: string;
  /** The share of the region's hosts that are to link to it by themselves, from 0 to 1. */
  readonly linkShare: number;
}

interface Entry {
  readonly linkUrl: string;
  readonly linkShare: number;
  /** Milliseconds since the epoch. */
  readonly seenAt: number;
  /** The node answers the requests that it holds, and accepts no new links. */
  readonly isLeaving: boolean;
}

const isRecent = ({ seenAt }: Entry): boolean =>
  seenAt + DIRECTORY_LIMITS.controlNodeTtlMs > Date.now();

/** The live control nodes of a region. Each renews its own entry; agents read them all. */
export class ControlNodes {
  readonly #redis: RedisClient;
  readonly #key: string;

  constructor(redis: RedisClient, region: string) {
    this.#redis = redis;
    this.#key = keys.controlNodes(region);
  }

  /**
   * @param isLeaving the node still answers the requests it holds, but agents must not link to it
   */
  async announce({ nodeId, ...node }: ControlNode, isLeaving: boolean): Promise<void> {
    const entry: Entry = { ...node, seenAt: Date.now(), isLeaving };
    await this.#redis.hset(this.#key, nodeId, JSON.stringify(entry));
  }

  async withdraw(nodeId: string): Promise<void> {
    await this.#redis.hdel(this.#key, nodeId);
  }

  /** Whether a node, of this region or another, is still there to answer the requests it holds. */
  async isAlive({ nodeId, region }: { nodeId: string; region: string }): Promise<boolean> {
    const text = await this.#redis.hget(keys.controlNodes(region), nodeId);
    return text !== null && isRecent(readEntry(text));
  }

  /**
   * The nodes that accept links and renewed their entry lately. Removes entries that were not
   * renewed for long.
   */
  async live(): Promise<ControlNode[]> {
    return this.readLive(new Map(Object.entries(await this.#redis.hgetall(this.#key))));
  }

  /** The same, from the entries of all nodes by id, which the caller has just read. */
  async readLive(entries: ReadonlyMap<string, string>): Promise<ControlNode[]> {
    const nodes: ControlNode[] = [];
    for (const [nodeId, text] of entries) {
      const entry = readEntry(text);
      if (!isRecent(entry)) await this.#redis.hdel(this.#key, nodeId);
      else if (!entry.isLeaving) {
        const { linkUrl, linkShare } = entry;
        nodes.push({ nodeId, linkUrl, linkShare });
      }
    }
    return nodes;
  }
}

function readEntry(text: string): Entry {
  const entry: unknown = parseJson(text);
  if (typeof entry !== 'object' || entry === null) {
    return { linkUrl: '', linkShare: 1, seenAt: 0, isLeaving: false };
  }
  const linkShare: unknown = Reflect.get(entry, 'linkShare');
  return {
    linkUrl: String(Reflect.get(entry, 'linkUrl')),
    linkShare: typeof linkShare === 'number' ? linkShare : 1, // A former version wants all hosts.
    seenAt: Number(Reflect.get(entry, 'seenAt')),
    isLeaving: Reflect.get(entry, 'isLeaving') === true,
  };
}
