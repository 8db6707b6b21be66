import type { Redis } from 'ioredis';
import { AppError } from '../errors.ts';
import { DIRECTORY_LIMITS } from './limits.ts';
import { keys } from './keys.ts';
import { primaryOf } from './primary-of.ts';

/**
 * Confirms that writes have reached replicas of Redis, so that a failover does not lose what a
 * caller was told (docs/decisions/0079). Replication is in order: once a replica has a mark that
 * was written after them, it has all earlier writes of any connection to the same primary.
 */
export interface ReplicaConfirmation {
  /**
   * Does the work, and resolves with its result once what it wrote is at the replicas.
   * @param isChange whether the work with this result has written anything: always, if not given
   * @throws what the work throws, and AppError `outcome_unknown`: the change may be lost
   */
  confirmed<T>(work: () => Promise<T>, isChange?: (result: T) => boolean): Promise<T>;
}

/** Where nobody waits for replicas. */
export const unconfirmed: ReplicaConfirmation = { confirmed: (work) => work() };

interface WaitingConnections {
  /** The connection that the writes go through, as a sign of who is the primary. */
  readonly redis: Redis;
  /** A connection for this alone: WAIT holds up whatever is sent after it. */
  readonly waiting: Redis;
}

export const lost = (message: string, cause?: unknown): AppError =>
  new AppError('outcome_unknown', message, { cause });

export const FAILED_OVER =
  'Redis failed over meanwhile, so the change may be lost: look whether it is there';

/**
 * Waits for replicas of one primary by `WAIT` (redis.io/docs/latest/commands/wait). Callers that
 * come meanwhile share the next one.
 */
export class SharedWait {
  readonly #waiting: Redis;
  readonly #replicas: number;
  readonly #mark: () => Promise<string>;
  #last: Promise<void> = Promise.resolve();
  #next: Promise<void> | undefined;

  /**
   * @param waiting a connection to the primary for this alone
   * @param replicas how many must confirm
   * @param mark a key at that primary, to be written
   */
  constructor(waiting: Redis, replicas: number, mark: () => Promise<string>) {
    this.#waiting = waiting;
    this.#replicas = replicas;
    this.#mark = mark;
  }

  /**
   * Resolves once all that was written before is at the replicas.
   * @throws AppError `outcome_unknown`
   */
  async wait(): Promise<void> {
    this.#next ??= this.#waitAfter(this.#last);
    await this.#next;
  }

  async #waitAfter(before: Promise<void>): Promise<void> {
    await before.catch(() => undefined);
    this.#last = this.#ask();
    this.#next = undefined;
    return this.#last;
  }

  async #ask(): Promise<void> {
    const replicas = this.#replicas;
    const confirmed = await this.#markAndWait().catch((error: unknown) => {
      throw lost('Redis was lost before a replica confirmed the change, so it may be lost', error);
    });
    if (confirmed >= replicas) return;
    const who = `${confirmed} of ${replicas} replicas of Redis`;
    throw lost(`the change was made, but only ${who} confirmed it: a failover may lose it`);
  }

  /** @returns how many replicas have the mark */
  async #markAndWait(): Promise<number> {
    const mark = await this.#mark();
    const [, confirmed] = await Promise.all([
      this.#waiting.set(mark, ''),
      this.#waiting.wait(this.#replicas, DIRECTORY_LIMITS.replicaConfirmMsMax),
    ]);
    return confirmed;
  }
}

/**
 * Where there is one primary: it has all that was written, unless another one was made meanwhile.
 */
export class WaitingConfirmation implements ReplicaConfirmation {
  readonly #connections: WaitingConnections;
  readonly #shared: SharedWait;

  constructor(
    connections: WaitingConnections,
    { region, replicas }: { readonly region: string; readonly replicas: number },
  ) {
    this.#connections = connections;
    this.#shared = new SharedWait(connections.waiting, replicas, async () =>
      keys.replicaMark(region),
    );
  }

  async confirmed<T>(work: () => Promise<T>, isChange?: (result: T) => boolean): Promise<T> {
    const { redis, waiting } = this.#connections;
    const primary = primaryOf(redis);
    const result = await work();
    if (isChange?.(result) === false) return result;
    await this.#shared.wait();
    if (primaryOf(redis) === primary && primaryOf(waiting) === primary) return result;
    throw lost(FAILED_OVER);
  }
}
