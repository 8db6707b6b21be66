import { AsyncLocalStorage } from 'node:async_hooks';
import { once } from 'node:events';
import { Cluster, type Command, type Redis, type RedisOptions } from 'ioredis';
import { backoffMs } from '../backoff.ts';
import type { ClusteredRedis } from '../tls/redis-tls.ts';
import { credentialsOf, nodeConnector } from './cluster-connectors.ts';

/** The connections that a piece of work has written over. */
const writing = new AsyncLocalStorage<Set<Redis>>();

/** The work that a command is part of. It stays so when a node sends the command on to another. */
const workOf = new WeakMap<object, Set<Redis>>();

/**
 * Does work, and notes each connection of any {@link ClusterClient} that it writes over before it
 * does: also those to nodes that sent the write on to another.
 */
export async function noteWrites<T>(
  work: () => Promise<T>,
): Promise<{ readonly result: T; readonly written: ReadonlySet<Redis> }> {
  const written = new Set<Redis>();
  return { result: await writing.run(written, work), written };
}

/** Commands of the directory that surely write nothing. Any other one counts as a write. */
const READS: ReadonlySet<string> = new Set([
  ...['exists', 'get', 'hexists', 'hget', 'hgetall', 'hkeys', 'hlen', 'hmget', 'hscan', 'hvals'],
  ...['info', 'lindex', 'llen', 'lrange', 'mget', 'ping', 'scard', 'sismember', 'smembers', 'time'],
  ...['xrange', 'xrevrange', 'zcard', 'zrange', 'zrangebylex', 'zrangebyscore', 'zscore'],
]);

const READY_MS_MAX = 10_000;
const RECONNECT_MS = { min: 100, max: 1_000 } as const;
const NOT_READY = "Stream isn't writeable: the Redis Cluster is away";

/** Has the connection to a node note the commands that write. */
function watchSends(node: Redis): void {
  const send = node.sendCommand.bind(node);
  node.sendCommand = (command, stream) => {
    workOf.get(command)?.add(node);
    return send(command, stream);
  };
}

/** How long a connection to a node waits for what. */
export type NodeOptions = Pick<
  RedisOptions,
  'maxRetriesPerRequest' | 'commandTimeout' | 'socketTimeout' | 'connectTimeout'
>;

interface ClusterClientOptions {
  readonly node: NodeOptions;
  readonly lazyConnect: boolean;
  readonly onError: (error: Error) => void;
}

/**
 * A client of a Redis Cluster: it sends each command to the primary that has the key's slot. A
 * command that a node refuses because the slot has moved is sent on; one whose connection broke has
 * failed, since it may have been done. Nothing is sent in pipelines of ioredis' own: one slot of
 * several that has moved would fail all of them.
 */
export class ClusterClient extends Cluster {
  constructor(target: ClusteredRedis, { node, lazyConnect, onError }: ClusterClientOptions) {
    super([...target.nodes], {
      ...{ lazyConnect, scaleReads: 'master', enableAutoPipelining: false },
      // By name, so that a name that cannot be looked up is as a node that is down, and TLS sees
      // it.
      dnsLookup: (name, found) => found(null, name),
      clusterRetryStrategy: (attempt) => backoffMs(attempt - 1, RECONNECT_MS),
      ...{ retryDelayOnFailover: 0, retryDelayOnClusterDown: 0 },
      redisOptions: { ...node, ...credentialsOf(target), Connector: nodeConnector },
    });
    this.on('+node', watchSends);
    this.on('error', onError);
    this.on('node error', onError);
  }

  /**
   * Resolves once the nodes say that all is well.
   * @throws Error when they have not within 10 s; the client goes on trying
   */
  async open(): Promise<void> {
    const ready = once(this, 'ready', { signal: AbortSignal.timeout(READY_MS_MAX) });
    this.connect().catch(() => undefined); // The client says that it has failed, and tries again.
    await ready;
  }

  /** Fails a command at once while no node can be reached, as a single Redis does. */
  override sendCommand(command: Command, ...rest: [stream?: never, node?: unknown]): unknown {
    const work = READS.has(command.name) ? undefined : writing.getStore();
    if (work !== undefined) workOf.set(command, work);
    if (this.status === 'ready' || command.name === 'cluster') {
      return super.sendCommand(command, ...rest);
    }
    command.reject(new Error(NOT_READY));
    return command.promise;
  }
}
