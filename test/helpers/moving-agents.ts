/* Hosts that share the storage of their sandboxes, each with its agent in a process of its own. */
import { fork, type ChildProcess } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { mkdirSync, readdirSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { SandboxState } from '../../shared/sandbox-lifecycle.ts';
import type { SandboxExecRecord } from '../../shared/schemas/sandbox-record.ts';

/** Settings of one agent (test/fixtures/moving-agent.ts). */
export interface MovingAgentSettings {
  readonly hostId: string;
  readonly accountId: string;
  readonly dataDir: string;
  readonly directory: string;
  readonly watch: string;
  readonly redisPort: number;
  readonly key: string;
  readonly memoryMib: number;
  /** After how long a host counts as silent. */
  readonly silenceMs: number;
  /** How long a sandbox stays released before its host reclaims it, and until the next release. */
  readonly releasedMs: number;
  readonly armed: Armed | undefined;
}

/**
 * A failpoint at which an agent kills itself, when it reaches that for the n-th time from now on.
 */
export interface Armed {
  readonly point: string;
  readonly nth: number;
}

/** A sandbox of an agent's journal. */
export interface Row {
  readonly id: string;
  readonly vmId: string;
  readonly state: SandboxState;
  readonly exitReason: string | undefined;
  readonly slot: number | undefined;
  readonly uid: number;
  /** Whether a machine of it runs. */
  readonly isRunning: boolean;
}

export type Asked =
  | { readonly call: 'create' | 'delete' | 'execs'; readonly id: string }
  | { readonly call: 'fork'; readonly id: string; readonly from: string }
  | {
      readonly call: 'exec';
      readonly id: string;
      readonly execId: string;
      readonly command: string;
    }
  | {
      readonly call: 'act';
      readonly id: string;
      readonly action: 'pause' | 'resume' | 'start' | 'stop';
    }
  | { readonly call: 'arm'; readonly armed: Armed | undefined }
  | { readonly call: 'takes'; readonly takes: boolean }
  /** Has everything that reaches a point wait there; undefined: nothing any more. */
  | { readonly call: 'hold'; readonly point: string | undefined }
  /** Has what reaches a point next fail there, as on a full disk. */
  | { readonly call: 'fail'; readonly point: string }
  | { readonly call: 'rows' | 'takeReached' | 'failing' | 'stopAll' };

export type Answer =
  | { readonly value: unknown }
  | { readonly error: { readonly message: string; readonly code: string | undefined } };

/** An answer that never came, since the agent was killed. */
export class AgentDied extends Error {}

const PROGRAM = new URL('../fixtures/moving-agent.ts', import.meta.url);

/** A host and its agent, which can be killed and started again. */
export class MovingHost {
  readonly hostId: string;
  #settings: Omit<MovingAgentSettings, 'armed'>;
  readonly #waiting = new Map<number, PromiseWithResolvers<unknown>>();
  #child: ChildProcess | undefined;
  #calls = 0;

  constructor(settings: Omit<MovingAgentSettings, 'armed'>) {
    this.hostId = settings.hostId;
    this.#settings = settings;
    mkdirSync(settings.dataDir, { recursive: true });
  }

  get isRunning(): boolean {
    return this.#child?.exitCode === null && this.#child.signalCode === null;
  }

  get slots(): string[] {
    return readdirSync(join(this.#settings.dataDir, 'slots'));
  }

  /** @returns whether it has started; false when it was killed at the failpoint */
  async start(armed?: Armed): Promise<boolean> {
    const settings: MovingAgentSettings = { ...this.#settings, armed };
    const child = fork(PROGRAM, [JSON.stringify(settings)], { serialization: 'advanced' });
    this.#child = child;
    const ended = once(child, 'exit').then(() => {
      for (const { reject } of this.#waiting.values())
        reject(new AgentDied('the agent was killed'));
      this.#waiting.clear();
      return false;
    });
    const ready = new Promise<boolean>((resolve) => {
      child.on('message', (said: { number: number; ready?: true } & Answer) => {
        if (said.ready === true) return resolve(true);
        const waiting = this.#waiting.get(said.number);
        this.#waiting.delete(said.number);
        if ('error' in said)
          waiting?.reject(Object.assign(new Error(said.error.message), said.error));
        else waiting?.resolve(said.value);
      });
    });
    const hasStarted = await Promise.race([ready, ended]);
    if (hasStarted || armed !== undefined) return hasStarted;
    throw new Error(`the agent did not start: ${await this.readLog()}`);
  }

  async kill(): Promise<void> {
    if (!this.isRunning || this.#child === undefined) return;
    const ended = once(this.#child, 'exit');
    this.#child.kill('SIGKILL');
    await ended;
  }

  /** Starts its agent again with more memory for sandboxes. */
  async grow(memoryMib: number): Promise<void> {
    await this.kill();
    this.#settings = { ...this.#settings, memoryMib };
    await this.start();
  }

  readLog(): Promise<string> {
    return readFile(join(this.#settings.dataDir, 'log'), 'utf8').catch(() => '');
  }

  /** @throws Error of the agent, with its `code`; AgentDied */
  async ask<T>(asked: Asked): Promise<T> {
    if (!this.isRunning) throw new AgentDied('no agent runs');
    this.#calls += 1;
    const answered = Promise.withResolvers<unknown>();
    this.#waiting.set(this.#calls, answered);
    this.#child?.send({ ...asked, number: this.#calls });
    return (await answered.promise) as T;
  }

  /** The sandboxes of its journal; none while no agent runs. */
  async rows(): Promise<Row[]> {
    return this.ask<Row[]>({ call: 'rows' }).catch((error: unknown) => {
      if (error instanceof AgentDied) return [];
      throw error;
    });
  }

  /** Like {@link ask}, of an agent that may be killed meanwhile. @returns whether it answered */
  async attempt(asked: Asked): Promise<boolean> {
    try {
      await this.ask(asked);
      return true;
    } catch (error) {
      if (error instanceof AgentDied) return false;
      throw error;
    }
  }

  /** Runs a command to its end. */
  exec(id: string, command: string): Promise<{ exec: SandboxExecRecord; stdout: string }> {
    return this.ask({ call: 'exec', id, execId: randomUUID(), command });
  }
}
