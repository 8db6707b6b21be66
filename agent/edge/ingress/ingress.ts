import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { Worker } from 'node:worker_threads';
import { runInBackground } from '../../../shared/background.ts';
import type { Hosts } from '../../../shared/directory/hosts.ts';
import { AppError, toError } from '../../../shared/errors.ts';
import { LIMITS } from '../../../shared/limits.ts';
import type { Logger } from '../../../shared/log.ts';
import type { Counter, Gauge } from '../../../shared/metrics.ts';
import { isServing, type SandboxState } from '../../../shared/sandbox-lifecycle.ts';
import { settledWithin } from '../../../shared/settled-within.ts';
import type { SandboxRegistry } from '../../sandboxes/sandbox-registry.ts';
import { DoorError } from './door-error.ts';
import type { Door, IngressWorkerData, PortRef, ToMain, ToWorker } from './messages.ts';
import { SandboxDoors } from './sandbox-doors.ts';
import { TunnelServer, tunnelTo } from './tunnels.ts';
import type { Ring } from '../../../shared/secrets.ts';

export interface IngressMetrics {
  readonly connections: Gauge;
  readonly answers: Counter<'status'>;
}

export interface IngressOptions {
  readonly hostId: string;
  /** Secrets of the cluster. */
  readonly clusterSecrets: Ring<string>;
  readonly hosts: Pick<Hosts, 'find'>;
  /** Undefined on a host without sandboxes, which only passes requests on. */
  readonly registry: SandboxRegistry | undefined;
  readonly metrics: IngressMetrics;
  readonly log: Logger;
}

const WORKER = new URL('worker.ts', import.meta.url);
const RESTART_AFTER_MS = 1_000;
/** A forgotten entry costs one more attempt to drop connections. */
const RESTING_MAX = 10_000;
/** Requests make much garbage that dies young; see also the flags in the Procfile. */
const YOUNG_MIB = 64;

type SandboxRef = Pick<PortRef, 'accountId' | 'sandboxId'>;

/**
 * The ingress of this host: threads with a server each, and, on the main thread, what they need of
 * sandboxes and of other hosts (docs/ingress.md).
 */
export class Ingress {
  readonly tunnels: TunnelServer;
  readonly #options: IngressOptions;
  readonly #doors: SandboxDoors | undefined;
  readonly #workers = new Set<IngressWorker>();
  readonly #connections = new Map<IngressWorker, number>();
  /** Sandboxes whose connections were dropped and that have not run since. */
  readonly #resting = new Set<string>();
  #isClosed = false;

  constructor(options: IngressOptions) {
    const { hostId, clusterSecrets, registry, log } = options;
    this.#options = options;
    this.#doors = registry === undefined ? undefined : new SandboxDoors(hostId, registry);
    this.tunnels = new TunnelServer({
      ...{ hostId, clusterSecrets, log },
      open: async (ref, mayWake) => {
        const opened = await this.#here().open(ref, mayWake);
        this.#retire(ref); // The other host does not say that its request waits.
        return opened;
      },
      hold: (ref) => this.#hold(ref),
    });
    registry?.watchStates(({ id, state }) => this.#noteState(id, state));
  }

  /** Starts the threads; resolves when all of them listen. @throws Error when one cannot */
  async listen(data: IngressWorkerData, threads: number): Promise<void> {
    const { connections } = data;
    const share = { ...connections, max: Math.ceil(connections.max / threads) };
    const each = { ...data, connections: share };
    await Promise.all(Array.from({ length: threads }, () => this.#start(each)));
  }

  /** Lets requests under way finish, for a while, and then ends the threads. */
  async close(): Promise<void> {
    this.#isClosed = true;
    const ended = Promise.all([...this.#workers].map((worker) => worker.close()));
    await settledWithin(ended, LIMITS.drainMs);
    this.tunnels.close();
    for (const worker of this.#workers) worker.terminate();
  }

  async #start(data: IngressWorkerData): Promise<void> {
    const worker = new IngressWorker(data, (message) => this.#receive(worker, message));
    this.#workers.add(worker);
    runInBackground('ingress.watch', async () => {
      const error = await worker.ended;
      this.#workers.delete(worker);
      this.#connections.delete(worker);
      if (this.#isClosed) return;
      this.#options.log.error({ err: error }, 'ingress:threadEnded');
      await sleep(RESTART_AFTER_MS);
      if (!this.#isClosed && worker.hasListened) await this.#start(data);
    });
    await worker.listening;
  }

  #receive(worker: IngressWorker, message: ToMain): void {
    switch (message.kind) {
      case 'open': {
        runInBackground('ingress.open', () => this.#open(worker, message));
        break;
      }
      case 'use': {
        worker.setUse(message.ref.sandboxId, message.inUse ? this.#hold(message.ref) : undefined);
        break;
      }
      case 'waits': {
        this.#retire(message.ref);
        break;
      }
      case 'counts': {
        this.#count(worker, message);
        break;
      }
      case 'listening':
      case 'closed': {
        break;
      }
    }
  }

  async #open(
    worker: IngressWorker,
    { id, ref, mayWake }: Extract<ToMain, { kind: 'open' }>,
  ): Promise<void> {
    try {
      worker.send({ kind: 'opened', id, door: await this.#door(ref, mayWake) });
    } catch (error) {
      const isExpected = error instanceof DoorError;
      if (!isExpected)
        this.#options.log.error({ err: toError(error), ...ref }, 'ingress:openFailed');
      const fault = isExpected ? error.fault : 'unavailable';
      worker.send({ kind: 'notOpened', id, fault, message: toError(error).message });
    }
  }

  async #door(ref: PortRef, mayWake: boolean): Promise<Door> {
    const { hostId, clusterSecrets, hosts } = this.#options;
    if (ref.hostId === hostId) return this.#here().begin(ref, mayWake);
    const internalUrl = await hosts.find(ref.hostId);
    if (internalUrl === undefined) throw new DoorError('unavailable', 'the host is away now');
    return tunnelTo(clusterSecrets, internalUrl, ref, mayWake);
  }

  /** @throws DoorError */
  #here(): SandboxDoors {
    if (this.#isClosed) throw new DoorError('unavailable', 'the host is shutting down');
    if (this.#doors === undefined) throw new DoorError('not_found', 'this host runs no sandboxes');
    return this.#doors;
  }

  /** @returns a function that ends the hold */
  #hold(ref: SandboxRef): () => void {
    try {
      return this.#options.registry?.find(ref).uses.portTraffic() ?? (() => undefined);
    } catch (error) {
      if (!(error instanceof AppError)) throw error;
      return () => undefined; // The sandbox belongs to another host, or is gone.
    }
  }

  /**
   * Drops the connections of a sandbox once, when it runs no longer: later ones await its return.
   */
  #noteState(sandboxId: string, state: SandboxState): void {
    if (isServing(state)) {
      this.#resting.delete(sandboxId);
      return;
    }
    if (this.#resting.has(sandboxId)) return;
    if (this.#resting.size >= RESTING_MAX) this.#resting.clear();
    this.#resting.add(sandboxId);
    this.tunnels.drop(sandboxId);
    for (const worker of this.#workers) worker.send({ kind: 'left', sandboxId });
  }

  /** Has all threads end their idle connections to a port. */
  #retire(ref: PortRef): void {
    for (const worker of this.#workers) worker.send({ kind: 'retire', ref });
  }

  #count(
    worker: IngressWorker,
    { connections, answers }: Extract<ToMain, { kind: 'counts' }>,
  ): void {
    const { metrics } = this.#options;
    this.#connections.set(worker, connections);
    metrics.connections.set([...this.#connections.values()].reduce((sum, each) => sum + each, 0));
    for (const [status, count] of Object.entries(answers)) metrics.answers.inc({ status }, count);
  }
}

/** A thread, and the sandboxes that it holds. */
class IngressWorker {
  hasListened = false;
  readonly listening: Promise<void>;
  /** Resolves with what ended it, if anything did. */
  readonly ended: Promise<Error | undefined>;
  readonly #worker: Worker;
  readonly #holds = new Map<string, () => void>();

  constructor(workerData: IngressWorkerData, receive: (message: ToMain) => void) {
    const resourceLimits = { maxYoungGenerationSizeMb: YOUNG_MIB };
    this.#worker = new Worker(WORKER, { workerData, resourceLimits, env: {} });
    const listening = Promise.withResolvers<void>();
    this.listening = listening.promise;
    let failure: Error | undefined;
    this.#worker.on('error', (error) => {
      failure = toError(error);
    });
    this.ended = once(this.#worker, 'exit').then(() => {
      listening.reject(failure ?? new Error('a thread of the ingress ended'));
      for (const release of this.#holds.values()) release();
      return failure;
    });
    this.#worker.on('message', (message: ToMain) => {
      if (message.kind === 'listening') {
        this.hasListened = true;
        listening.resolve();
      }
      receive(message);
    });
  }

  send(message: ToWorker): void {
    this.#worker.postMessage(message, []);
  }

  /** @param hold ends the hold on the sandbox; undefined: it is not used any more */
  setUse(sandboxId: string, hold: (() => void) | undefined): void {
    this.#holds.get(sandboxId)?.();
    if (hold === undefined) this.#holds.delete(sandboxId);
    else this.#holds.set(sandboxId, hold);
  }

  async close(): Promise<void> {
    this.send({ kind: 'close' });
    await this.ended;
  }

  terminate(): void {
    runInBackground('ingress.terminate', () => this.#worker.terminate());
  }
}
