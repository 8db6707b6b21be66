import { spawn, type ChildProcess } from 'node:child_process';
import { closeSync, fstatSync, mkdirSync, openSync, renameSync, statSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { join, relative } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { Backoff } from '../shared/backoff.ts';
import { paths } from './local-paths.ts';
import { endProcess, identify, killGroup, type ProcessId } from '../shared/process-id.ts';
import type { ServiceSpec } from './procfile.ts';
import { MiB } from '../shared/units.ts';

const LOG_BYTES_MAX = 50 * MiB;
const BACKOFF_MS = { min: 500, max: 15_000 } as const;
/** A process that ran for this long is restarted without delay again. */
const STEADY_AFTER_MS = 30_000;
const DEATHS_BEFORE_READY_MAX = 3;

/** Supervises one process of the stack: starts it, restarts it when it dies, and stops it. */
export class Service {
  readonly spec: ServiceSpec;
  readonly #env: NodeJS.ProcessEnv;
  readonly #report: (line: string) => void;
  readonly #started: () => void;
  readonly #log: string;
  /** The present process; undefined while waiting to restart it. */
  #id: ProcessId | undefined;
  #startedAtMs = 0;
  readonly #backoff = new Backoff(BACKOFF_MS);
  #deaths = 0;
  /** The offset at which this run's part of the log begins. */
  #logFrom: number | undefined;
  #restart: NodeJS.Timeout | undefined;
  #stopping = false;

  /** @param env its whole environment */
  constructor(
    spec: ServiceSpec,
    env: NodeJS.ProcessEnv,
    report: (line: string) => void,
    started: () => void,
  ) {
    this.spec = spec;
    this.#env = env;
    this.#report = report;
    this.#started = started;
    this.#log = join(paths.logs, `${spec.name}.log`);
  }

  get id(): ProcessId | undefined {
    return this.#id;
  }

  start(): void {
    const child = this.#spawn();
    this.#startedAtMs = performance.now();
    this.#id = child.pid === undefined ? undefined : identify(child.pid);
    this.#started();
    let ended = false;
    const onEnd = (how: string) => {
      if (ended) return;
      ended = true;
      this.#id = undefined;
      this.#startAgainLater(how);
    };
    child.once('error', (error) => onEnd(error.message));
    child.once('exit', (code, signal) => onEnd(signal ?? `exit code ${String(code)}`));
  }

  /** @throws Error with the end of the log when it dies repeatedly or is not ready in time. */
  async waitUntilReady(deadlineMs: number): Promise<void> {
    while (!(this.#id !== undefined && (await this.spec.isReady()))) {
      if (this.#stopping) throw new Error(`${this.spec.name} was stopped before it was ready.`);
      const problem =
        this.#deaths >= DEATHS_BEFORE_READY_MAX
          ? 'keeps dying'
          : performance.now() > deadlineMs
            ? 'does not get ready'
            : undefined;
      if (problem !== undefined) {
        throw new Error(
          `${this.spec.name} ${problem}. The end of its log:\n${await this.#logEnd()}`,
        );
      }
      await sleep(50);
    }
  }

  async stop(): Promise<void> {
    this.#stopping = true;
    clearTimeout(this.#restart);
    if (this.#id !== undefined) await endProcess(this.#id, this.spec.stop);
  }

  kill(): void {
    if (this.#id !== undefined) killGroup(this.#id);
  }

  // In a session of its own, so that Ctrl-C in a terminal reaches the supervisor only.
  #spawn(): ChildProcess {
    const log = openLog(this.#log);
    try {
      this.#logFrom ??= fstatSync(log).size;
      return spawn('/bin/sh', ['-c', `exec ${this.spec.command}`], {
        cwd: paths.root,
        env: this.#env,
        stdio: ['ignore', log, log],
        detached: true,
      });
    } finally {
      closeSync(log);
    }
  }

  #startAgainLater(how: string): void {
    if (this.#stopping) return;
    this.#deaths += 1;
    if (performance.now() - this.#startedAtMs >= STEADY_AFTER_MS) this.#backoff.reset();
    const pauseMs = this.#backoff.nextMs();
    const seconds = pauseMs / 1000;
    const log = relative(paths.root, this.#log);
    this.#report(`${this.spec.name} died (${how}); starting it again in ${seconds} s; see ${log}`);
    this.#restart = setTimeout(() => {
      this.#report(`${this.spec.name} started again`);
      this.start();
    }, pauseMs);
  }

  async #logEnd(): Promise<string> {
    const bytes = await readFile(this.#log);
    return bytes.toString('utf8', this.#logFrom).trimEnd().split('\n').slice(-20).join('\n');
  }
}

function openLog(path: string): number {
  mkdirSync(paths.logs, { recursive: true });
  if ((statSync(path, { throwIfNoEntry: false })?.size ?? 0) > LOG_BYTES_MAX) {
    renameSync(path, `${path}.1`);
  }
  return openSync(path, 'a', 0o600);
}
