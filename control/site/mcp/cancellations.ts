import { Redis } from 'ioredis';
import { keys } from '../../../shared/directory/keys.ts';
import type { RedisClient } from '../../../shared/directory/redis-client.ts';
import { queueConnection } from '../../../shared/directory/redis.ts';
import type { Logger } from '../../../shared/log.ts';
import { sha256 } from '../../../shared/secrets.ts';
import type { RedisTarget } from '../../../shared/tls/redis-tls.ts';

/** Which call is meant: ids of requests count anew in each session of each caller. */
export interface CallName {
  readonly keyId: string;
  readonly session: string;
  readonly id: string | number;
}

export interface CancellationsOptions {
  readonly redis: RedisClient;
  /** Where it is, for a connection of its own. */
  readonly target: RedisTarget;
  readonly region: string;
  readonly log: Logger;
}

const nameOf = ({ keyId, session, id }: CallName): string =>
  sha256(JSON.stringify([keyId, session, id]));

/**
 * Calls under way that their callers may cancel. A cancellation is a request of its own, which may
 * arrive at another node: it is published to all of them.
 */
export class Cancellations {
  readonly #redis: RedisClient;
  readonly #target: RedisTarget;
  readonly #channel: string;
  readonly #log: Logger;
  readonly #calls = new Map<string, () => void>();
  #subscriber: Redis | undefined;

  constructor({ redis, target, region, log }: CancellationsOptions) {
    this.#redis = redis;
    this.#target = target;
    this.#channel = keys.cancelledTools(region);
    this.#log = log;
  }

  /** @returns disposed of when the call has ended */
  begin(call: CallName, cancel: () => void): Disposable {
    this.#subscribe();
    const name = nameOf(call);
    this.#calls.set(name, cancel);
    return {
      [Symbol.dispose]: () => {
        if (this.#calls.get(name) === cancel) this.#calls.delete(name);
      },
    };
  }

  /** Cancels a call wherever it runs. Nothing happens when it has ended. */
  async cancel(call: CallName): Promise<void> {
    const name = nameOf(call);
    this.#calls.get(name)?.(); // Also while Redis is away.
    await this.#redis.publish(this.#channel, name);
  }

  close(): void {
    this.#subscriber?.disconnect();
  }

  /**
   * Once, with the first call: most nodes serve none. The connection is opened again when it
   * breaks.
   */
  #subscribe(): void {
    if (this.#subscriber !== undefined) return;
    const options = { blocking: true, prefix: this.#channel }; // The connection waits until Redis is back.
    const subscriber = new Redis(queueConnection(this.#target, options));
    this.#subscriber = subscriber;
    subscriber.on('error', (error) => this.#log.warn({ err: error.message }, 'redis:error'));
    subscriber.on('message', (_channel, name) => this.#calls.get(name)?.());
    subscriber.subscribe(this.#channel).catch((error: unknown) => {
      this.#subscriber = undefined; // The next call tries again.
      subscriber.disconnect();
      this.#log.warn({ err: error }, 'mcp:subscriptionFailed');
    });
  }
}
