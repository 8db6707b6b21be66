import { setTimeout as sleep } from 'node:timers/promises';
import type { Region, RegionSandbox } from './region-parts.ts';

const CALLS_AT_ONCE = 16;
/** Between two calls of one kind. */
const PAUSE_MS = { create: 100, get: 20, list: 100 } as const;
const ACTIONS_DRAIN_MS = 30_000;
const TRIES_MAX = 10;
const RETRY_MS = 500;

/** Calls of some seconds, and how long each took, in milliseconds. */
export interface CallTimes {
  readonly create: number[];
  readonly get: number[];
  readonly listSandboxes: number[];
  readonly listDisks: number[];
  readonly pause: number[];
  readonly resume: number[];
  /** Actions that had to be left out because every sandbox was still busy with one. */
  leftOut: number;
  /** Failed answers, by status and code. */
  readonly failures: Map<string, number>;
}

/** Callers of a region, who ask its control nodes in turn. */
export class Calls {
  readonly #region: Region;
  #next = 0;

  constructor(region: Region) {
    this.#region = region;
  }

  /** @throws Error with the status and what was answered */
  async call(key: string, method: string, path: string, body?: object): Promise<unknown> {
    const { controls } = this.#region;
    const { baseUrl = '' } = controls[this.#next++ % controls.length] ?? {};
    const response = await fetch(`${baseUrl}${path}`, {
      method,
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    const text = await response.text();
    if (!response.ok) throw new Error(`${method} ${response.status} ${text.slice(0, 200)}`);
    return text === '' ? undefined : (JSON.parse(text) as { data: unknown }).data;
  }

  /** Disks of all accounts in turn, by the API. */
  async makeDisks(count: number): Promise<void> {
    const { keys } = this.#region;
    let next = 0;
    const work = async (): Promise<void> => {
      for (;;) {
        const index = next;
        next += 1;
        if (index >= count) return;
        const key = keys[index % keys.length] ?? '';
        await this.#until(key, 'POST', '/api/disks', { name: `disk-${index}` });
      }
    };
    await Promise.all(Array.from({ length: CALLS_AT_ONCE }, work));
  }

  /** Repeats what was refused with 503, as callers do: a host that is busy takes no job in time. */
  async #until(key: string, method: string, path: string, body: object): Promise<void> {
    for (let tries = 1; ; tries += 1) {
      try {
        await this.call(key, method, path, body);
        return;
      } catch (error) {
        const mayPass = error instanceof Error && error.message.startsWith(`${method} 503`);
        if (!mayPass || tries === TRIES_MAX) throw error;
        await sleep(RETRY_MS);
      }
    }
  }

  /** So many lifecycle actions a second, and beside them one call of each other kind at a time. */
  async load(
    sandboxes: readonly RegionSandbox[],
    { actionsPerSecond, seconds }: { readonly actionsPerSecond: number; readonly seconds: number },
  ): Promise<CallTimes> {
    const times: CallTimes = {
      ...{ create: [], get: [], listSandboxes: [], listDisks: [], pause: [], resume: [] },
      ...{ leftOut: 0, failures: new Map() },
    };
    const until = performance.now() + seconds * 1000;
    const { keys } = this.#region;
    const pick = (): RegionSandbox =>
      sandboxes[random(sandboxes.length)] ?? { sandboxId: '', key: '' };
    const keyOf = (): string => keys[random(keys.length)] ?? '';
    const every = async (pauseMs: number, work: () => Promise<void>): Promise<void> => {
      while (performance.now() < until) {
        await Promise.all([work(), sleep(pauseMs)]);
      }
    };
    const timed = (into: number[], work: () => Promise<unknown>): Promise<unknown> =>
      timeInto(times, into, work);
    await Promise.all([
      this.#act(sandboxes, times, { actionsPerSecond, until }),
      every(PAUSE_MS.create, async () => this.#createAndDelete(keyOf(), times)),
      every(PAUSE_MS.get, async () => {
        const { key, sandboxId } = pick();
        await timed(times.get, () => this.call(key, 'GET', `/api/sandboxes/${sandboxId}`));
      }),
      every(PAUSE_MS.list, async () => {
        await timed(times.listSandboxes, () => this.call(keyOf(), 'GET', '/api/sandboxes'));
      }),
      every(PAUSE_MS.list, async () => {
        await timed(times.listDisks, () => this.call(keyOf(), 'GET', '/api/disks?limit=50'));
      }),
    ]);
    return times;
  }

  async #createAndDelete(key: string, times: CallTimes): Promise<void> {
    const body = { vcpu_count: 1, mem_size_mib: 256 };
    const made = await timeInto(times, times.create, () =>
      this.call(key, 'POST', '/api/sandboxes?wait=true', body),
    );
    if (made === undefined) return;
    const path = `/api/sandboxes/${(made as { sandbox_id: string }).sandbox_id}`;
    await timeInto(times, [], () => this.call(key, 'POST', `${path}/stop?wait=true`));
    await timeInto(times, [], () => this.call(key, 'DELETE', path));
  }

  /** Pauses one sandbox after the other, and resumes those that it has paused. */
  async #act(
    sandboxes: readonly RegionSandbox[],
    times: CallTimes,
    { actionsPerSecond, until }: { readonly actionsPerSecond: number; readonly until: number },
  ): Promise<void> {
    const resting = [...sandboxes];
    const paused: RegionSandbox[] = [];
    const underWay = new Set<Promise<void>>();
    const beganAt = performance.now();
    for (let count = 0; performance.now() < until; count += 1) {
      const isResume = count % 2 === 1 && paused.length > 0;
      const sandbox = isResume ? paused.shift() : resting.splice(random(resting.length), 1)[0];
      if (sandbox === undefined) times.leftOut += 1;
      else {
        const acting = this.#actOn(sandbox, isResume, times).then(() => {
          (isResume ? resting : paused).push(sandbox);
          underWay.delete(acting);
        });
        underWay.add(acting);
      }
      const dueAt = beganAt + ((count + 1) * 1000) / actionsPerSecond;
      await sleep(Math.max(0, dueAt - performance.now()));
    }
    await Promise.race([Promise.all(underWay), sleep(ACTIONS_DRAIN_MS, undefined, { ref: false })]);
  }

  async #actOn(
    { key, sandboxId }: RegionSandbox,
    isResume: boolean,
    times: CallTimes,
  ): Promise<void> {
    const [into, action] = isResume ? [times.resume, 'resume'] : [times.pause, 'pause'];
    await timeInto(times, into, () =>
      this.call(key, 'POST', `/api/sandboxes/${sandboxId}/${action}?wait=true`),
    );
  }
}

const random = (below: number): number => Math.floor(Math.random() * below);

/** @returns what the call returns; undefined when it failed, which is counted */
async function timeInto(
  { failures }: CallTimes,
  into: number[],
  work: () => Promise<unknown>,
): Promise<unknown> {
  const beganAt = performance.now();
  try {
    const result = await work();
    into.push(performance.now() - beganAt);
    return result;
  } catch (error) {
    const what = error instanceof Error ? error.message : String(error);
    failures.set(what, (failures.get(what) ?? 0) + 1);
    return undefined;
  }
}
