import assert from 'node:assert';
import { readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { ApiClient } from './api.ts';
import type { Environment } from './daemon.ts';
import { type ApiSandbox, machinesOf } from './sandboxes.ts';
import type { Stack } from './stack.ts';

const isFull = process.env['BERTH_TEST_FULL'] === '1';
const SAMPLE = 2;

/** Tells which points are tried; BERTH_TEST_SEED sets it. */
export const pointsSeed = Number(
  process.env['BERTH_TEST_SEED'] ?? Math.floor(Date.now() / 1000) % 100_000,
);

/** The crash points of a stack's agents (agent/step.ts), which were started with its settings. */
export class CrashPoints {
  readonly #file: string;

  constructor(file: string) {
    this.#file = file;
  }

  get settings(): Environment {
    return { CRASH_POINTS: this.#file };
  }

  /** The agent ends itself when it gets there. */
  async arm(point: string): Promise<void> {
    await writeFile(this.#file, point);
  }

  async disarm(): Promise<void> {
    await rm(this.#file, { force: true });
  }

  async hasReached(point: string): Promise<boolean> {
    const text = await readFile(`${this.#file}.reached`, 'utf8').catch(() => '');
    return text.split('\n').includes(point);
  }

  /** What was reached since the last call, in order. */
  async takeReached(): Promise<string[]> {
    const file = `${this.#file}.reached`;
    const text = await readFile(file, 'utf8').catch(() => '');
    await rm(file, { force: true });
    return text.split('\n').filter((line) => line !== '');
  }
}

/** A few of them, always the same for one seed; all of them with BERTH_TEST_FULL=1. */
export function samplePoints(points: readonly string[]): string[] {
  const distinct = [...new Set(points)];
  if (isFull) return distinct;
  let state = pointsSeed;
  const next = (): number => (state = (state * 1_103_515_245 + 12_345) % 2 ** 31);
  return distinct
    .map((point) => ({ point, order: next() }))
    .sort((a, b) => a.order - b.order)
    .slice(0, SAMPLE)
    .map(({ point }) => point);
}

/** What is left on the host belongs to the account's sandboxes. */
export async function assertNothingElse(stack: Stack, api: ApiClient): Promise<void> {
  const { sandboxes } = await api.data<{ sandboxes: ApiSandbox[] }>('GET', '/api/sandboxes');
  const ids = new Set(sandboxes.map((sandbox) => sandbox.sandbox_id));
  const dataDir = stack.environment['AGENT_DATA_DIR'] ?? '';
  const kept = await readdir(join(dataDir, 'sandboxes')).catch(() => []);
  assert.deepEqual(
    kept.filter((name) => !ids.has(name)),
    [],
  );
  const running = sandboxes.filter(({ status }) => status === 'running');
  const machines = await machinesOf([...ids]);
  assert.equal(machines.length, running.length, machines.join(', '));
}
