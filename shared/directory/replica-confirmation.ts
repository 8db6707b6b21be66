import type { Redis } from 'ioredis';
import { AppError } from '../errors.ts';
import { LIMITS } from '../limits.ts';
import { keys } from './keys.ts';
import { primaryOf } from './primary-watch.ts';

/** Resolves once what was written since it was made is at the replicas. @throws AppError `outcome_unknown` */
export type Confirm = () => Promise<void>;

/**
 * Confirms that writes have reached replicas of Redis, so that a failover does not lose what a
 * caller was told (docs/decisions/0079). Replication is in order: once a replica has a mark that
 * was written after them, it has all earlier writes of any connection to the same primary.
 */
export interface ReplicaConfirmation {
  /** Call it before the writes: a failover between them and their confirmation is noticed. */
  begin(): Confirm;
}

/** Where nobody waits for replicas. */
export const unconfirmed: ReplicaConfirmation = { begin: () => () => Promise.resolve() };

interface WaitingConnections {
  /** The connection that the writes go through, as a sign of who is the primary. */
  readonly redis: Redis;
  /** A connection for this alone: WAIT holds up whatever is sent after it. */
  readonly waiting: Redis;
}

/** A write offset, and the number of replicas that must reach it. */
interface Wanted {
  readonly region: string;
  readonly replicas: number;
}

const lost = (message: string, cause?: unknown): AppError =>
  new AppError('outcome_unknown', message, { cause });

/** By `WAIT` (redis.io/docs/latest/commands/wait). Callers that come meanwhile share the next one. */
export class WaitingConfirmation implements ReplicaConfirmation {
  readonly #connections: WaitingConnections;
  readonly #wanted: Wanted;
  #last: Promise<void> = Promise.resolve();
  #next: Promise<void> | undefined;

  constructor(connections: WaitingConnections, wanted: Wanted) {
    this.#connections = connections;
    this.#wanted = wanted;
  }

  begin(): Confirm {
    const { redis, waiting } = this.#connections;
    const primary = primaryOf(redis);
    return async () => {
      this.#next ??= this.#confirmAfter(this.#last);
      await this.#next;
      if (primaryOf(redis) === primary && primaryOf(waiting) === primary) return;
      throw lost(
        'Redis failed over meanwhile, so the change may be lost: look whether it is there',
      );
    };
  }

  async #confirmAfter(before: Promise<void>): Promise<void> {
    await before.catch(() => undefined);
    this.#last = this.#confirm();
    this.#next = undefined;
    return this.#last;
  }

  async #confirm(): Promise<void> {
    const { region, replicas } = this.#wanted;
    const { waiting } = this.#connections;
    const [, confirmed] = await Promise.all([
      waiting.set(keys.replicaMark(region), ''),
      waiting.wait(replicas, LIMITS.replicaConfirmMsMax),
    ]).catch((error: unknown) => {
      throw lost('Redis was lost before a replica confirmed the change, so it may be lost', error);
    });
    if (confirmed >= replicas) return;
    const who = `${confirmed} of ${replicas} replicas of Redis`;
    throw lost(`the change was made, but only ${who} confirmed it: a failover may lose it`);
  }
}
