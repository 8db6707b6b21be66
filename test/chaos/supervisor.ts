import { readFile } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import { toError } from '../../shared/errors.ts';
import type { Daemon } from '../helpers/daemon.ts';
import { waitFor } from '../helpers/wait.ts';
import type { Findings } from './findings.ts';

/** A killed process ends once storage that hangs has answered what it asked (fuse(4)). */
const ENDS_MS_MAX = 240_000;
const LOOKS_EVERY_MS = 50;
const START_AGAIN_MS = 500;
const READY_MS_MAX = 120_000;
const LOG_TAIL_CHARS = 700;

interface Around {
  readonly end?: () => Promise<void>;
  readonly beforeStart?: () => Promise<void> | undefined;
}

/** Keeps one process of the stack running, as the supervisor of an installation does. */
export class Supervisor {
  readonly daemon: Daemon;
  readonly #isReady: () => Promise<boolean>;
  readonly #findings: Findings;
  /** Whether the process was ready since its last start and so must not end by itself. */
  #wasReady = true;
  #restart: Promise<void> | undefined;
  #stopped = false;
  readonly #watching: Promise<void>;

  readonly #beforeStartAgain: ((lastLog: string) => Promise<void>) | undefined;

  /**
   * @param daemon a process that is already running
   * @param beforeStartAgain what an operator does with the process' log before it is started again,
   *   after it ended by itself
   */
  constructor(
    daemon: Daemon,
    isReady: () => Promise<boolean>,
    findings: Findings,
    beforeStartAgain?: (lastLog: string) => Promise<void>,
  ) {
    this.#beforeStartAgain = beforeStartAgain;
    this.daemon = daemon;
    this.#isReady = isReady;
    this.#findings = findings;
    this.#watching = this.#watch();
  }

  /**
   * Kills it and starts it again.
   * @param around what is done instead of killing it alone, and before it is started
   * @returns when it was started, on the clock of performance.now(), or undefined when it did not
   *   run
   */
  async kill(restartAfterMs: number, around: Around = {}): Promise<number | undefined> {
    if (this.#restart !== undefined || !this.daemon.isRunning) return undefined;
    this.#restart = this.#endAndStart(restartAfterMs, around);
    await this.#restart;
    return performance.now();
  }

  /** Whether it runs and is not being restarted. */
  get isUp(): boolean {
    return this.#restart === undefined && this.daemon.isRunning;
  }

  /**
   * Stops it from running for a time, but not what it started.
   * @returns when it went on, or undefined when it did not run or was killed meanwhile
   */
  async freeze(ms: number): Promise<number | undefined> {
    if (this.#restart !== undefined || !this.daemon.isRunning) return undefined;
    const { pid } = this.daemon;
    process.kill(pid, 'SIGSTOP');
    await sleep(ms);
    if (!this.daemon.isRunning || this.daemon.pid !== pid) return undefined;
    process.kill(pid, 'SIGCONT');
    return performance.now();
  }

  /** Waits until it is ready to serve. @throws Error when it does not get there */
  async untilReady(): Promise<void> {
    await waitFor(
      `${this.daemon.name} to be ready`,
      async () => this.isUp && (await this.#isReady()),
      READY_MS_MAX,
    );
    this.#wasReady = true;
  }

  /** Lets the process end from now on. */
  async release(): Promise<void> {
    this.#stopped = true;
    await this.#watching;
    await this.#restart;
  }

  async #endAndStart(ms: number, { end, beforeStart }: Around): Promise<void> {
    const { daemon } = this;
    try {
      if (end === undefined) process.kill(daemon.pid, 'SIGKILL');
      else await end();
      await this.#startAfter(ms, beforeStart);
    } catch (error) {
      this.#findings.report(`${daemon.name} cannot be restarted: ${toError(error).message}`);
    } finally {
      this.#restart = undefined;
    }
  }

  async #startAfter(ms: number, beforeStart?: Around['beforeStart']): Promise<void> {
    await waitFor(`${this.daemon.name} to end`, async () => !this.daemon.isRunning, ENDS_MS_MAX);
    await sleep(ms);
    await beforeStart?.();
    this.#wasReady = false;
    this.daemon.start();
    this.#restart = undefined;
  }

  async #watch(): Promise<void> {
    while (!this.#stopped) {
      await sleep(LOOKS_EVERY_MS);
      if (this.#restart !== undefined) continue;
      if (!this.daemon.isRunning) {
        await this.#startAgain();
      } else if (!this.#wasReady) {
        this.#wasReady = await this.#isReady();
      }
    }
  }

  async #startAgain(): Promise<void> {
    const log = await readFile(this.daemon.logPath, 'utf8').catch(() => '');
    const last = log.slice(-LOG_TAIL_CHARS);
    if (this.#wasReady) {
      this.#findings.report(`${this.daemon.name} ended by itself; its log ends with: ${last}`);
    }
    this.#findings.count(`starts of ${this.daemon.name} that failed`);
    this.#restart = this.#startAfter(START_AGAIN_MS, () => this.#beforeStartAgain?.(last));
    await this.#restart;
  }
}
