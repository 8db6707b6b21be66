import { connect as connectTcp } from 'node:net';
import { connect as connectTls, type ConnectionOptions } from 'node:tls';
import { AbstractConnector, Command, Redis, type RedisOptions } from 'ioredis';
import Type from 'typebox';
import { Backoff } from '../backoff.ts';
import { type ClusteredRedis, redisTlsOptions } from '../tls/redis-tls.ts';
import { compile } from '../validate.ts';
import { noteRunId, type Stream } from './primary-of.ts';

interface Address {
  readonly host: string;
  readonly port: number;
}

const CLOSE_MS = 2_000;
const ASK_MS_MAX = 1_000;
const SEARCH_MS = { min: 100, max: 1_000 } as const;

interface Credentials {
  readonly username?: string;
  readonly password?: string;
  readonly tls?: ConnectionOptions;
}

/** @throws Error when a certificate cannot be read */
export const credentialsOf = ({ username, password, tls }: ClusteredRedis): Credentials => ({
  ...(username === undefined ? {} : { username }),
  ...(password === undefined ? {} : { password }),
  ...(tls === undefined ? {} : { tls: redisTlsOptions(tls) }),
});

/** Which of the 16,384 hash slots has a key. */
export const slotOf = (key: string): number => new Command('get', [key]).getSlot() ?? 0;

/** Reaches a server that must say that it is a primary, and notes its run id. */
class PrimaryConnector extends AbstractConnector {
  readonly #options: RedisOptions;

  // ioredis does not say to whom it hands its options.
  constructor(options: unknown) {
    super(CLOSE_MS);
    this.#options = options as RedisOptions;
  }

  override async connect(_emit: (type: string, error: Error) => void): Promise<Stream> {
    this.connecting = true;
    const { host = '', port = 0 } = this.#options;
    return this.open({ host, port });
  }

  override check({ role, run_id: runId }: { role?: string; run_id?: string }): boolean {
    if (role !== 'master') return false;
    noteRunId(this.stream, runId);
    return true;
  }

  protected open({ host, port }: Address): Stream {
    const { tls } = this.#options;
    this.stream = tls === undefined ? connectTcp(port, host) : connectTls({ ...tls, host, port });
    this.stream.once('error', (error: Error) => {
      this.firstError = error;
    });
    return this.stream;
  }
}

/** How ioredis reaches a server of a Redis Cluster by its address. */
export const nodeConnector: NonNullable<RedisOptions['Connector']> = PrimaryConnector;

const readSlots = compile(Type.Array(Type.Array(Type.Unknown(), { minItems: 3 })));
const readNode = compile(Type.Array(Type.Unknown(), { minItems: 3 }));

/** Asks a node of a Redis Cluster who has which slots. @throws Error when it does not answer */
export async function readSlotRanges(redis: Redis): Promise<SlotRange[]> {
  const ranges = readSlots(await redis.cluster('SLOTS'), 'CLUSTER SLOTS');
  return ranges.map(([first, last, primary]) => {
    const [host, port, id] = readNode(primary, 'CLUSTER SLOTS');
    return {
      ...{ first: Number(first), last: Number(last) },
      primary: { host: typeof host === 'string' ? host : '', port: Number(port), id: String(id) },
    };
  });
}

async function askForSlots(target: ClusteredRedis, node: Address): Promise<SlotRange[]> {
  const redis = new Redis({
    ...{ ...node, ...credentialsOf(target), lazyConnect: true, enableReadyCheck: false },
    ...{ retryStrategy: () => null, connectTimeout: ASK_MS_MAX, commandTimeout: ASK_MS_MAX },
  });
  redis.on('error', () => undefined); // `connect` throws it.
  try {
    await redis.connect();
    return await readSlotRanges(redis);
  } finally {
    redis.disconnect();
  }
}

interface SlotRange {
  readonly first: number;
  readonly last: number;
  readonly primary: Address & { readonly id: string };
}

/**
 * How ioredis finds and reaches the primary of the slot that a key is in, as with Sentinels: its
 * nodes are asked at each attempt to connect, and who answers there must say that it is a primary.
 */
export function slotConnector(
  target: ClusteredRedis,
  key: string,
): NonNullable<RedisOptions['Connector']> {
  const slot = slotOf(key);
  let known: readonly Address[] = target.nodes;
  const find = async (): Promise<Address | undefined> => {
    const begin = Math.floor(Math.random() * known.length);
    for (const node of [...known.slice(begin), ...known.slice(0, begin)]) {
      const ranges = await askForSlots(target, node).catch(() => []);
      const range = ranges.find(({ first, last }) => first <= slot && slot <= last);
      if (range === undefined) continue;
      known = [...target.nodes, ...ranges.map(({ primary }) => primary)];
      // A node that does not know its own address leaves it out.
      return { port: range.primary.port, host: range.primary.host || node.host };
    }
    return undefined;
  };
  return class extends PrimaryConnector {
    override async connect(emit: (type: string, error: Error) => void): Promise<Stream> {
      this.connecting = true;
      const backoff = new Backoff(SEARCH_MS);
      while (this.connecting) {
        const primary = await find();
        if (!this.connecting) break;
        if (primary !== undefined) return this.open(primary);
        emit('error', new Error(`no node of the Redis Cluster knows who has slot ${slot}`));
        await backoff.pause({ ref: false });
      }
      throw new Error('Connection is closed.');
    }
  };
}
