import { freemem, totalmem } from 'node:os';
import { runInBackground } from '../../shared/background.ts';
import { toError } from '../../shared/errors.ts';
import { newJobId } from '../../shared/ids.ts';
import type { Logger } from '../../shared/log.ts';
import { Container, type ContainerHost } from './container.ts';

/** How many containers wait ready, at least; more when more were lately in use at once. */
const READY_MIN = 2;
const DEMAND_WINDOW_MS = 60_000;
const RETRY_AFTER_FAILURE_MS = 1_000;
const TRIM_EVERY_MS = 10_000;
/** Below this share of free memory no container is kept waiting. */
const FREE_MEMORY_SHARE_MIN = 0.1;

export interface PoolLimits {
  /** Containers kept ready, at most. */
  readonly readyMax: number;
  /** Containers started at the same time, at most: more of them only get into each other's way. */
  readonly startingMax: number;
}

type Waiter = PromiseWithResolvers<Container>;

/**
 * Single-use containers that wait for a command. Whoever takes one gets a fresh one, and another is
 * started in its place; when none is ready, takers are served in the order in which they came.
 */
export class ContainerPool {
  readonly #host: ContainerHost;
  readonly #limits: PoolLimits;
  readonly #log: Logger;
  readonly #ready: Container[] = [];
  readonly #waiters: Waiter[] = [];
  /** Every container of this host that is not gone yet. */
  readonly #all = new Set<Container>();
  #starting = 0;
  #inUse = 0;
  #demand = 0;
  #demandAt = 0;
  #retry: NodeJS.Timeout | undefined;
  readonly #trimming: NodeJS.Timeout;
  #closed = false;

  constructor(host: ContainerHost, limits: PoolLimits, log: Logger) {
    this.#host = host;
    this.#limits = limits;
    this.#log = log;
    this.#trimming = setInterval(() => this.#trim(), TRIM_EVERY_MS);
  }

  /** Starts containers up to the number that should be ready. */
  fill(): void {
    const wanted = this.#waiters.length + this.#readyTarget() - this.#ready.length;
    while (
      !this.#closed &&
      this.#starting < Math.min(wanted, this.#limits.startingMax) &&
      this.#retry === undefined
    ) {
      this.#starting += 1;
      runInBackground('container.start', () => this.#startOne());
    }
  }

  /** A container for one command; it is the taker's until it is {@link Container.gone}. */
  async take(): Promise<Container> {
    if (this.#closed) throw new Error('the pool is closed');
    this.#noteDemand();
    let container = this.#ready.shift();
    while (container !== undefined && !container.isUsable) container = this.#ready.shift();
    if (container === undefined) {
      const waiter: Waiter = Promise.withResolvers();
      this.#waiters.push(waiter);
      this.fill();
      container = await waiter.promise;
    }
    this.#lend(container);
    this.fill();
    return container;
  }

  /** Ends every container and waits until none is left. */
  async close(): Promise<void> {
    this.#closed = true;
    clearTimeout(this.#retry);
    clearInterval(this.#trimming);
    for (const waiter of this.#waiters.splice(0)) waiter.reject(new Error('the pool is closed'));
    await Promise.allSettled([...this.#all].map((container) => container.kill()));
    await Promise.allSettled([...this.#all].map((container) => container.gone));
  }

  #lend(container: Container): void {
    this.#inUse += 1;
    const back = (): void => {
      this.#inUse -= 1;
    };
    container.gone.then(back, back);
  }

  #noteDemand(): void {
    const now = performance.now();
    const present = this.#inUse + this.#waiters.length + 1;
    if (present >= this.#demand || this.#demandIsOld()) {
      this.#demand = present;
      this.#demandAt = now;
    }
  }

  #demandIsOld(): boolean {
    return performance.now() - this.#demandAt > DEMAND_WINDOW_MS;
  }

  #readyTarget(): number {
    if (freemem() / totalmem() < FREE_MEMORY_SHARE_MIN) return 0;
    const demand = this.#demandIsOld() ? this.#inUse : this.#demand;
    return Math.min(Math.max(READY_MIN, demand), this.#limits.readyMax);
  }

  /** Ends those that wait for a load that is over, or hold memory that is short. */
  #trim(): void {
    for (const container of this.#ready.splice(this.#readyTarget())) {
      container.kill().catch((error: unknown) => {
        this.#log.error({ containerId: container.id, err: toError(error) }, 'container:killFailed');
      });
    }
  }

  async #startOne(): Promise<void> {
    let container: Container;
    try {
      container = this.#create();
      await container.start();
    } catch (error) {
      this.#failed(toError(error));
      return;
    } finally {
      this.#starting -= 1;
    }
    if (this.#closed) await container.kill();
    else this.#offer(container);
  }

  #create(): Container {
    const container = new Container(this.#host, newJobId());
    this.#all.add(container);
    const forget = (): void => {
      this.#all.delete(container);
    };
    container.gone.then(forget, (error: unknown) => {
      this.#log.error({ containerId: container.id, err: toError(error) }, 'container:notCleared');
      forget();
    });
    return container;
  }

  #offer(container: Container): void {
    const waiter = this.#waiters.shift();
    if (waiter === undefined) this.#ready.push(container);
    else waiter.resolve(container);
    this.fill();
  }

  /** One taker learns of it; then a pause, so that a broken host is not hammered. */
  #failed(error: Error): void {
    this.#log.error({ err: error }, 'container:notStarted');
    this.#waiters.shift()?.reject(error);
    if (this.#closed || this.#retry !== undefined) return;
    this.#retry = setTimeout(() => {
      this.#retry = undefined;
      this.fill();
    }, RETRY_AFTER_FAILURE_MS);
  }
}
