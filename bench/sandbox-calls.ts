import assert from 'node:assert';
import { setTimeout as sleep } from 'node:timers/promises';
import type { ApiClient } from '../test/helpers/api.ts';
import { ending } from './ending.ts';

const POLL_EVERY_MS = 50;

interface Sandbox {
  readonly sandbox_id: string;
  readonly status: string;
}

interface Exec {
  readonly exec_id: string;
  readonly status: string;
  readonly stdout?: string;
  readonly stderr?: string;
}

/** A sandbox that runs, and how long after its creation was requested. */
export interface Start {
  readonly id: string;
  readonly runningMs: number;
  /** Until a first command had put something out. */
  readonly outputMs: number;
}

const PASSING: ReadonlySet<string> = new Set(['pending', 'pausing', 'stopping']);

/** Calls the API of sandboxes as a client would, without the checks of the tests' client. */
export class SandboxCalls {
  readonly #api: ApiClient;

  constructor(api: ApiClient) {
    this.#api = api;
  }

  async start(memSizeMib: number, settings: object = {}): Promise<Start> {
    const beganAt = performance.now();
    const id = await this.createRunning(memSizeMib, settings);
    const runningMs = performance.now() - beganAt;
    assert.equal(await this.output(id, 'echo ready'), 'ready\n');
    return { id, runningMs, outputMs: performance.now() - beganAt };
  }

  /** Starts a sandbox and removes it. */
  async startOnce(memSizeMib: number, settings: object = {}): Promise<Start> {
    const start = await this.start(memSizeMib, settings);
    await this.remove(start.id);
    return start;
  }

  /** @returns the id of a sandbox that runs */
  async createRunning(memSizeMib: number, settings: object = {}): Promise<string> {
    const size = 'snapshot' in settings ? {} : { vcpu_count: 1, mem_size_mib: memSizeMib };
    const input = { ...size, ...settings };
    const created = await this.#call<Sandbox>('POST', '/api/sandboxes?wait=true', input);
    await this.#until(created, 'running');
    return created.sandbox_id;
  }

  /** Pauses a sandbox and waits until its checkpoint is durable. */
  pause(id: string): Promise<void> {
    return this.#command(id, 'pause', 'paused');
  }

  resume(id: string): Promise<void> {
    return this.#command(id, 'resume', 'running');
  }

  /** @returns the id of the copy, which runs */
  async fork(id: string): Promise<string> {
    const child = await this.#call<Sandbox>('POST', `/api/sandboxes/${id}/fork?wait=true`, {});
    await this.#until(child, 'running');
    return child.sandbox_id;
  }

  /** Runs a command. @returns its output */
  async output(id: string, command: string): Promise<string> {
    const path = `/api/sandboxes/${id}/execs`;
    let exec = await this.#call<Exec>('POST', `${path}?wait=true`, { command });
    while (exec.status === 'running') {
      await sleep(POLL_EVERY_MS, undefined, { signal: ending });
      exec = await this.#call<Exec>('GET', `${path}/${exec.exec_id}`);
    }
    if (exec.status !== 'completed') throw new Error(`${command}: ${JSON.stringify(exec)}`);
    return exec.stdout ?? '';
  }

  /** Makes a snapshot, and waits until it is ready. */
  async snapshot(id: string, name: string): Promise<void> {
    const path = `/api/sandboxes/${id}/snapshots?wait=true`;
    let snapshot = await this.#call<{ status: string }>('POST', path, { name });
    while (snapshot.status === 'creating') {
      await sleep(POLL_EVERY_MS, undefined, { signal: ending });
      snapshot = await this.#call('GET', `/api/snapshots/${name}`);
    }
    if (snapshot.status !== 'ready') throw new Error(JSON.stringify(snapshot));
  }

  stop(id: string): Promise<void> {
    return this.#command(id, 'stop', 'stopped');
  }

  async remove(id: string): Promise<void> {
    await this.stop(id);
    await this.#call('DELETE', `/api/sandboxes/${id}`);
  }

  async #command(id: string, command: string, status: string): Promise<void> {
    const path = `/api/sandboxes/${id}/${command}?wait=true`;
    await this.#until(await this.#call<Sandbox>('POST', path), status);
  }

  async #until(sandbox: Sandbox, status: string): Promise<void> {
    let now = sandbox;
    while (now.status !== status) {
      if (!PASSING.has(now.status)) throw new Error(`not ${status}: ${JSON.stringify(now)}`);
      await sleep(POLL_EVERY_MS, undefined, { signal: ending });
      now = await this.#call<Sandbox>('GET', `/api/sandboxes/${sandbox.sandbox_id}`);
    }
  }

  async #call<T>(method: string, path: string, body?: object): Promise<T> {
    const response = await fetch(`${this.#api.baseUrl}${path}`, {
      method,
      headers: { authorization: `Bearer ${this.#api.key}`, 'content-type': 'application/json' },
      signal: ending,
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    const text = await response.text();
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
    return (text === '' ? {} : (JSON.parse(text) as { data: object }).data) as T;
  }
}
