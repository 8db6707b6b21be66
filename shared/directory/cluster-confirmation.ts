import { Redis } from 'ioredis';
import { AppError } from '../errors.ts';
import type { ClusteredRedis } from '../tls/redis-tls.ts';
import { type NodeOptions, noteWrites } from './cluster-client.ts';
import { credentialsOf, nodeConnector, readSlotRanges, slotOf } from './cluster-connectors.ts';
import { keys } from './keys.ts';
import { primaryOf } from './primary-of.ts';
import { FAILED_OVER, lost, type ReplicaConfirmation, SharedWait } from './replica-confirmation.ts';

const SLOTS = 16_384;
/** A mark whose slot has moved is replaced by another. */
const MARKS_TRIED = 4;

/** A key in a slot that a primary says is its own. @throws Error when it has none */
async function findMark(primary: Redis): Promise<string> {
  const [ranges, ownId] = await Promise.all([readSlotRanges(primary), primary.cluster('MYID')]);
  const own = ranges.filter(({ primary: { id } }) => id === ownId);
  if (own.length === 0) throw new Error('it is no primary any more');
  // Not the same each time: its slot may be on its way.
  for (let number = Math.floor(Math.random() * SLOTS); ; number += 1) {
    const key = keys.slotMark(number);
    const slot = slotOf(key);
    if (own.some(({ first, last }) => first <= slot && slot <= last)) return key;
  }
}

/** Whether a node has refused a write because the slot is moving, or has moved. */
const hasMoved = (error: unknown): boolean =>
  error instanceof AppError &&
  error.cause instanceof Error &&
  /^(?:MOVED|ASK|TRYAGAIN) /u.test(error.cause.message);

/** The connection that waits for the replicas of one primary. */
interface PrimaryWait {
  readonly waiting: Redis;
  readonly shared: SharedWait;
  readonly forgetMark: () => void;
}

interface ClusterConfirmationOptions {
  readonly target: ClusteredRedis;
  readonly replicas: number;
  /** For a connection to a node. */
  readonly node: NodeOptions;
}

/**
 * Where there are several primaries: each one that the work wrote to is waited for, by itself. A
 * write was done by a server that the work's connections lead to. As long as such a connection
 * stands, the server is the same; and once its replicas have a mark that was written to it
 * afterwards, they have the write.
 */
export class ClusterConfirmation implements ReplicaConfirmation {
  readonly #options: ClusterConfirmationOptions;
  /** By host and port. */
  readonly #waits = new Map<string, PrimaryWait>();

  constructor(options: ClusterConfirmationOptions) {
    this.#options = options;
  }

  async confirmed<T>(work: () => Promise<T>, isChange?: (result: T) => boolean): Promise<T> {
    const { result, written } = await noteWrites(work);
    if (isChange?.(result) === false) return result;
    await Promise.all([...written].map((connection) => this.#wait(connection)));
    return result;
  }

  close(): void {
    for (const { waiting } of this.#waits.values()) waiting.disconnect();
  }

  async #wait(connection: Redis, marksTried = 1): Promise<void> {
    const { waiting, shared, forgetMark } = this.#waitFor(connection);
    try {
      await shared.wait();
    } catch (error) {
      forgetMark();
      if (!hasMoved(error) || marksTried === MARKS_TRIED) throw error;
      return this.#wait(connection, marksTried + 1);
    }
    const isSame = primaryOf(waiting) === primaryOf(connection);
    if (connection.status !== 'ready' || !isSame) throw lost(FAILED_OVER);
  }

  #waitFor({ options: { host = '', port = 0 } }: Redis): PrimaryWait {
    const address = `${host}:${port}`;
    const known = this.#waits.get(address);
    if (known !== undefined) return known;
    const { target, node, replicas } = this.#options;
    const waiting = new Redis({
      ...{ ...node, ...credentialsOf(target), host, port, Connector: nodeConnector },
      ...{ lazyConnect: true, enableOfflineQueue: true, retryStrategy: () => null },
    });
    waiting.on('error', () => undefined); // The commands that wait fail.
    waiting.once('end', () => this.#waits.delete(address));
    let mark: Promise<string> | undefined;
    const forgetMark = (): void => {
      mark = undefined;
    };
    const shared = new SharedWait(waiting, replicas, () => (mark ??= findMark(waiting)));
    const wait = { waiting, shared, forgetMark };
    this.#waits.set(address, wait);
    return wait;
  }
}
