import { freemem, totalmem } from 'node:os';
import { runInBackground } from '../../shared/background.ts';
import { AppError, toError } from '../../shared/errors.ts';
import { newJobId } from '../../shared/ids.ts';
import type { Logger } from '../../shared/log.ts';
import { toAppError } from '../system/to-app-error.ts';
import { Container, type ContainerHost } from './container.ts';

/** The least number of ready containers; more are kept when more were recently in use at once. */
const READY_MIN = 2;
const DEMAND_WINDOW_MS = 60_000;
const RETRY_AFTER_FAILURE_MS = 1_000;
/** How long after it was taken a container is replaced while others are ready. */
const REFILL_AFTER_MS = 30;
const TRIM_EVERY_MS = 10_000;
/** When less than this share of memory is free, no containers are kept ready. */
const FREE_MEMORY_SHARE_MIN = 0.1;

export interface PoolLimits {
  /** The most containers that are kept ready. */
  readonly readyMax: number;
  /**
   * The most containers that are started at the same time: more would only slow each other down.
   */
  readonly startingMax: number;
}

type Waiter = PromiseWithResolvers<Container>;

/**
 * Prewarmed single-use containers. Each is given out once and replaced by a new one; when none is
 * ready, takers are served in order of arrival.
 */
export class ContainerPool {
  readonly #host: ContainerHost;
  readonly #limits: PoolLimits;
  readonly #log: Logger;
  readonly #ready: Container[] = [];
  readonly #waiters: Waiter[] = [];
  /** Every container of this host that has not been removed yet. */
  readonly #all = new Set<Container>();
  #starting = 0;
  #inUse = 0;
  #demand = 0;
  #demandAt = 0;
  #refilling: NodeJS.Timeout | undefined;
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

  /**
   * Takes a container for one command; the taker owns it until {@link Container.gone} settles.
   * @param signal ends the wait; its reason is thrown
   * @throws AppError `unavailable` or `no_capacity` when none could be started
   */
  async take(signal: AbortSignal): Promise<Container> {
    signal.throwIfAborted();
    if (this.#closed) throw closedError();
    this.#noteDemand();
    let container = this.#ready.shift();
    while (container !== undefined && !container.isUsable) container = this.#ready.shift();
    container ??= await this.#wait(signal);
    this.#lend(container);
    this.#refill();
    return container;
  }

  async #wait(signal: AbortSignal): Promise<Container> {
    const waiter: Waiter = Promise.withResolvers();
    const giveUp = (): void => {
      const index = this.#waiters.indexOf(waiter);
      if (index === -1) return; // The waiter was served or refused just now.
      this.#waiters.splice(index, 1);
      waiter.reject(signal.reason);
    };
    signal.addEventListener('abort', giveUp, { once: true });
    this.#waiters.push(waiter);
    this.fill();
    try {
      return await waiter.promise;
    } finally {
      signal.removeEventListener('abort', giveUp);
    }
  }

  /**
   * Replaces what was taken. While others are ready it waits until the command has probably ended:
   * a container that starts takes more of the processors than a short command, which would have to
   * share them.
   */
  #refill(): void {
    if (this.#ready.length === 0) return this.fill();
    this.#refilling ??= setTimeout(() => {
      this.#refilling = undefined;
      this.fill();
    }, REFILL_AFTER_MS);
  }

  /** Kills every container and waits until all are removed. */
  async close(): Promise<void> {
    this.#closed = true;
    clearTimeout(this.#retry);
    clearTimeout(this.#refilling);
    clearInterval(this.#trimming);
    for (const waiter of this.#waiters.splice(0)) waiter.reject(closedError());
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

  /** Removes ready containers that the load no longer calls for, or whose memory is needed. */
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
      this.#log.error(
        { containerId: container.id, err: toError(error) },
        'container:cleanupFailed',
      );
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

  /** Fails one taker and then pauses, so that a broken host does not start containers in a loop. */
  #failed(error: Error): void {
    this.#log.error({ err: error }, 'container:startFailed');
    this.#waiters.shift()?.reject(startFailed(error));
    if (this.#closed || this.#retry !== undefined) return;
    this.#retry = setTimeout(() => {
      this.#retry = undefined;
      this.fill();
    }, RETRY_AFTER_FAILURE_MS);
  }
}

const closedError = (): AppError =>
  new AppError('unavailable', 'the host is shutting down; try again');

/** The error for a taker: nothing of its command has run. */
function startFailed(error: Error): AppError {
  const known = toAppError(error);
  if (known.code !== 'internal_server_error') return known;
  const message = 'the host could not start a container; try again';
  return new AppError('unavailable', message, { cause: error });
}
