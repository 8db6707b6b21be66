import { readFileSync } from 'node:fs';
import type { Redis } from 'ioredis';
import { collectDefaultMetrics, Gauge, Registry } from 'prom-client';
import Type from 'typebox';
import { parseJson } from './json.ts';
import { compile } from './validate.ts';

export { Counter, Gauge, Histogram, Registry } from 'prom-client';

/** In seconds, from a cached read to the longest exec. */
export const DURATION_BUCKETS = [
  0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300,
];

const readPackage = compile(Type.Object({ version: Type.String() }));

/** The version of Berth that this process runs. */
export function ownVersion(): string {
  const manifest = readFileSync(new URL('../package.json', import.meta.url), 'utf8');
  return readPackage(parseJson(manifest), 'package.json').version;
}

/** A registry that already has the figures of the process itself. */
export function createMetrics(service: string): Registry {
  const registry = new Registry();
  registry.setDefaultLabels({ service });
  collectDefaultMetrics({ register: registry });
  const build = new Gauge({
    name: 'berth_build_info',
    help: 'Always 1; its labels say what runs',
    labelNames: ['version', 'node'] as const,
    registers: [registry],
  });
  build.set({ version: ownVersion(), node: process.version }, 1);
  return registry;
}

/**
 * Several metrics that one measurement fills: prom-client asks all metrics at the same time, and
 * each waits for the measurement that is under way.
 */
export function measuredOnce<T>(measure: () => Promise<T>): () => Promise<T> {
  let measuring: Promise<T> | undefined;
  return () => {
    measuring ??= measure().finally(() => {
      measuring = undefined;
    });
    return measuring;
  };
}

/** @returns seconds until Redis answered, or undefined when it did not */
async function askRedis(redis: Pick<Redis, 'ping'>): Promise<number | undefined> {
  const begunAt = performance.now();
  try {
    await redis.ping();
    return (performance.now() - begunAt) / 1000;
  } catch {
    return undefined;
  }
}

/** Whether the directory can be reached, asked when figures are. */
export function createRedisMetrics(registry: Registry, redis: Pick<Redis, 'ping'>): void {
  const ask = measuredOnce(() => askRedis(redis));
  const up: Gauge = new Gauge({
    name: 'berth_redis_up',
    help: 'Whether Redis answered when this was asked',
    registers: [registry],
    collect: async () => up.set((await ask()) === undefined ? 0 : 1),
  });
  const answer: Gauge = new Gauge({
    name: 'berth_redis_answer_seconds',
    help: 'How long Redis took to answer when this was asked',
    registers: [registry],
    async collect() {
      const seconds = await ask();
      if (seconds === undefined) answer.remove();
      else answer.set(seconds);
    },
  });
}
