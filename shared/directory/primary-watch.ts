import { Redis, type RedisOptions, SentinelConnector } from 'ioredis';
import { redisTlsOptions, type SentinelRedis } from '../tls/redis-tls.ts';
import { noteRunId, type Stream } from './primary-of.ts';

type Connect = SentinelConnector['connect'];

const SWITCHED = '+switch-master';
const RETRY_MS = 500;

/**
 * Listens to the Sentinels of one primary for as long as there are connections to it. When they
 * have made another server the primary, the connections end, so that each looks for the primary
 * anew: a former one that was paused, or cut off, may go on without a word.
 */
class PrimaryWatch {
  readonly #target: SentinelRedis;
  readonly #streams = new Set<Stream>();
  #listeners: Redis[] = [];
  #announced: string | undefined;

  constructor(target: SentinelRedis) {
    this.#target = target;
  }

  add(stream: Stream): void {
    this.#streams.add(stream);
    stream.once('close', () => {
      this.#streams.delete(stream);
      if (this.#streams.size === 0) this.#stop();
    });
    if (this.#listeners.length === 0) this.#start();
  }

  #start(): void {
    const { sentinels, sentinelPassword: password, tls } = this.#target;
    this.#listeners = sentinels.map((sentinel) => {
      const listener = new Redis({
        ...sentinel,
        ...(password === undefined ? {} : { password }),
        ...(tls === undefined ? {} : { tls: redisTlsOptions(tls) }),
        ...{ enableReadyCheck: false, retryStrategy: () => RETRY_MS, maxRetriesPerRequest: null },
      });
      listener.on('error', () => undefined); // The others are listened to as well.
      listener.on('message', (_, text: string) => this.#hear(text));
      // ioredis subscribes again whenever the Sentinel is back.
      listener.subscribe(SWITCHED).catch(() => undefined);
      return listener;
    });
  }

  #stop(): void {
    for (const listener of this.#listeners) listener.disconnect();
    this.#listeners = [];
  }

  /** @param text name, former host and port, new host and port; each Sentinel says it */
  #hear(text: string): void {
    const [name, , , host, port] = text.split(' ');
    const address = `${host}:${port}`;
    if (name !== this.#target.name || address === this.#announced) return;
    this.#announced = address;
    for (const stream of this.#streams) {
      if (`${stream.remoteAddress}:${stream.remotePort}` === address) continue;
      stream.destroy(new Error('another Redis has become the primary'));
    }
  }
}

/**
 * Each primary that this process uses has one watch: connections share what listens to the
 * Sentinels.
 */
const watches = new Map<string, PrimaryWatch>();

function watchOf(target: SentinelRedis): PrimaryWatch {
  const id = JSON.stringify(target);
  const watch = watches.get(id) ?? new PrimaryWatch(target);
  watches.set(id, watch);
  return watch;
}

/** How ioredis finds and reaches the primary, which must also say that it is one. */
export function watchedConnector(target: SentinelRedis): NonNullable<RedisOptions['Connector']> {
  const watch = watchOf(target);
  return class extends SentinelConnector {
    // ioredis does not say to whom it hands its options.
    constructor(options: unknown) {
      super(options as ConstructorParameters<typeof SentinelConnector>[0]);
    }

    override async connect(...args: Parameters<Connect>): Promise<Stream> {
      const stream = await super.connect(...args);
      watch.add(stream);
      return stream;
    }

    override check(info: { role?: string; run_id?: string }): boolean {
      const isPrimary = super.check(info);
      if (isPrimary) noteRunId(this.stream, info.run_id);
      return isPrimary;
    }
  };
}
