import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { FakeTime } from '../helpers/fake-time.ts';
import { startRedis } from '../helpers/redis.ts';
import { SeededBytes } from '../helpers/seeded-bytes.ts';
import { simulate, type Run } from './simulation.ts';

/**
 * In memory where there is such a file system: the journal is synced at every write all the same.
 */
const PLACES = ['/dev/shm', tmpdir()];

async function temporaryPlace(): Promise<string> {
  for (const place of PLACES) {
    const made = await mkdtemp(join(place, 'berth-simulation-')).catch(() => undefined);
    if (made !== undefined) return made;
  }
  throw new Error('no temporary directory can be made');
}

/** A place for simulations, one after the other: a Redis and a directory of their own. */
export class Simulator implements AsyncDisposable {
  readonly #stack: AsyncDisposableStack;
  readonly #place: string;
  readonly #redis: Awaited<ReturnType<typeof startRedis>>['redis'];
  readonly #time: FakeTime;
  #runs = 0;

  private constructor(
    stack: AsyncDisposableStack,
    place: string,
    redis: Awaited<ReturnType<typeof startRedis>>['redis'],
  ) {
    this.#stack = stack;
    this.#place = place;
    this.#redis = redis;
    this.#time = stack.use(new FakeTime());
  }

  static async open(): Promise<Simulator> {
    const stack = new AsyncDisposableStack();
    const { redis } = stack.use(await startRedis());
    const place = await temporaryPlace();
    stack.defer(() => rm(place, { recursive: true, force: true }));
    return new Simulator(stack, place, redis);
  }

  async run(seed: number, steps: number): Promise<Run> {
    this.#runs += 1;
    const directory = join(this.#place, String(this.#runs));
    await mkdir(directory);
    await this.#redis.flushall();
    this.#time.forgetTimers();
    this.#time.setWallClock(Date.UTC(2026, 0, 1));
    using _ = new SeededBytes(seed);
    try {
      return await simulate(seed, steps, { time: this.#time, redis: this.#redis, directory });
    } finally {
      await rm(directory, { recursive: true, force: true });
    }
  }

  /** The run with the fewest steps of those that begin as this one does and fail, too. */
  async shrink(failed: Run): Promise<Run> {
    let shortest = failed;
    let [holds, fails] = [0, failed.steps];
    while (holds + 1 < fails) {
      const middle = Math.floor((holds + fails) / 2);
      const run = await this.run(failed.seed, middle);
      if (run.broken.length === 0) holds = middle;
      else [fails, shortest] = [middle, run];
    }
    return shortest;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#stack.disposeAsync();
  }
}
