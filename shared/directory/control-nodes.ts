import type { Redis } from 'ioredis';
import { LIMITS } from '../limits.ts';
import { keys } from './keys.ts';
import { parseJson } from '../json.ts';

/** A control node that agents connect to. */
export interface ControlNode {
  readonly nodeId: string;
  /** URL of the agent link, `ws://…`. */
  readonly linkUrl: string;
}

/** The live control nodes of a region. Each renews its own entry; agents read them all. */
export class ControlNodes {
  readonly #redis: Redis;
  readonly #key: string;

  constructor(redis: Redis, region: string) {
    this.#redis = redis;
    this.#key = keys.controlNodes(region);
  }

  async announce(node: ControlNode): Promise<void> {
    const entry = JSON.stringify({ linkUrl: node.linkUrl, seenAt: Date.now() });
    await this.#redis.hset(this.#key, node.nodeId, entry);
  }

  async withdraw(nodeId: string): Promise<void> {
    await this.#redis.hdel(this.#key, nodeId);
  }

  /** The nodes that renewed their entry lately. Removes entries that were not renewed for long. */
  async live(): Promise<ControlNode[]> {
    const nodes: ControlNode[] = [];
    const entries = await this.#redis.hgetall(this.#key);
    for (const [nodeId, text] of Object.entries(entries)) {
      const { linkUrl, seenAt } = readEntry(text);
      if (seenAt + LIMITS.controlNodeTtlMs > Date.now()) nodes.push({ nodeId, linkUrl });
      else await this.#redis.hdel(this.#key, nodeId);
    }
    return nodes;
  }
}

function readEntry(text: string): { linkUrl: string; seenAt: number } {
  const entry: unknown = parseJson(text);
  if (typeof entry !== 'object' || entry === null) return { linkUrl: '', seenAt: 0 };
  return {
    linkUrl: String(Reflect.get(entry, 'linkUrl')),
    seenAt: Number(Reflect.get(entry, 'seenAt')),
  };
}
