/*
 * A host with its agent, callers and misfortunes, all in one process and by a clock of its own
 * (decision 0029). Every completion of something outside of the agent's memory, every request and
 * every fault is one step, and the seed decides which comes next.
 */
import { interceptFailpoints } from '../../agent/system/failpoint.ts';
import { reportBackgroundFailures } from '../../shared/background.ts';
import { act } from './callers.ts';
import { happen } from './fate.ts';
import { checkAtRest, checkHeld, checkNow, restlessOf } from './invariants.ts';
import type { Pending } from './schedule.ts';
import { runningAgent } from './simulated-agent.ts';
import { type Surroundings, World } from './world.ts';

const steps = {
  complete: 58,
  request: 18,
  time: 16,
  fate: 6,
  orderlyEnd: 0.1,
  crash: 0.5,
  power: 0.1,
  quiet: 0.1,
};
const stepsOfRecovery = { ...steps, request: 0, time: 3, quiet: 0 };
const TIMES_MS = [1, 10, 100, 250, 500, 1_000, 5_000];
const LONG_TIMES_MS = [30_000, 120_000];
const LONG_TIME_PROBABILITY = 0.02;

/** At one completion. A crash there is as likely at each point that is reached. */
const CRASH_PROBABILITY = 0.006;
const FAILURE_PROBABILITY = 0.01;
const STUCK_PROBABILITY = 0.004;
/** An agent that takes longer to let go is killed. */
const DETACH_TURNS_MAX = 100;
const STUCK_MS = [2_000, 15_000, 45_000, 150_000];

/** Without faults everything comes to rest sooner than this. */
const REST_MS_MAX = 30 * 60_000;
const REST_STEP_MS = 1_000;

export interface Run {
  readonly seed: number;
  /** How many steps were taken. */
  readonly steps: number;
  /** Violations; empty when everything held. */
  readonly broken: readonly string[];
  readonly trace: readonly string[];
  readonly counts: ReadonlyMap<string, number>;
  /** How often each point was reached. */
  readonly reached: ReadonlyMap<string, number>;
  /** At how many different points an agent was killed. */
  readonly crashPoints: ReadonlySet<string>;
}

/** Runs so many steps, then lets everything come to rest; ends before at the first thing broken. */
export async function simulate(
  seed: number,
  stepsMax: number,
  surroundings: Surroundings,
): Promise<Run> {
  const simulation = new Simulation(seed, surroundings);
  return simulation.run(stepsMax);
}

class Simulation {
  readonly #world: World;
  readonly #seed: number;
  readonly #crashPoints = new Set<string>();
  #checkedAgent = 0;

  constructor(seed: number, surroundings: Surroundings) {
    this.#seed = seed;
    this.#world = new World(seed, surroundings);
  }

  async run(stepsMax: number): Promise<Run> {
    const world = this.#world;
    interceptFailpoints((point) => (runningAgent() ?? world.agent).reach(point));
    reportBackgroundFailures((task, error) => {
      if (runningAgent()?.isDead !== true) world.trace.push(`  ${task}: ${error.message}`);
    });
    const unhandled = (error: unknown): void => {
      world.ledger.broken.push(`nobody handled: ${String(error)}`);
    };
    process.on('unhandledRejection', unhandled);
    let taken = 0;
    try {
      world.startAgent();
      await world.time.settle();
      for (; taken < stepsMax && world.broken.length === 0; taken += 1) await this.#takeStep();
      if (world.broken.length === 0) await this.#comeToRest();
    } catch (error) {
      world.ledger.broken.push(
        error instanceof Error ? (error.stack ?? error.message) : String(error),
      );
    } finally {
      await world.agent.kill().catch(() => undefined);
      process.off('unhandledRejection', unhandled);
      interceptFailpoints(undefined);
    }
    const { broken, trace, counts, schedule } = world;
    const [seed, crashPoints] = [this.#seed, this.#crashPoints];
    return { seed, steps: taken, broken, trace, counts, reached: schedule.reached, crashPoints };
  }

  async #takeStep(): Promise<void> {
    const world = this.#world;
    const { random, time } = world;
    // Until it has recovered an agent is asked for little.
    const step = random.weighted(world.agent.isReady ? steps : stepsOfRecovery);
    if (world.agent.failure !== undefined) await world.replaceAgent();
    else if (step === 'complete') await this.#complete();
    else if (step === 'request') act(world);
    else if (step === 'fate') await happen(world);
    else if (step === 'time') {
      const isLong = random.fraction() < LONG_TIME_PROBABILITY;
      await time.pass(random.pick(isLong ? LONG_TIMES_MS : TIMES_MS));
    } else if (step === 'quiet') await this.#beQuiet();
    else await this.#end(step);
    await time.settle();
    await this.#checkRecovered();
  }

  /** Ends an action that was under way: well, badly, late, or never. */
  async #complete(): Promise<void> {
    const world = this.#world;
    const { random, schedule } = world;
    const pending = schedule.take(random);
    if (pending === undefined) return world.agent.isReady ? act(world) : world.time.pass(5_000);
    const luck = random.fraction();
    if (pending.agent !== 0 && luck < CRASH_PROBABILITY) {
      this.#crashPoints.add(pending.point);
      world.note('crash', `the agent is killed at: ${pending.point}`);
      return world.replaceAgent();
    }
    if (luck < CRASH_PROBABILITY + STUCK_PROBABILITY) {
      pending.notBefore = performance.now() + random.pick(STUCK_MS);
      world.note('stuck', `stuck: ${pending.point}`);
      schedule.add(pending);
    } else if (canFail(pending) && random.fraction() < FAILURE_PROBABILITY) {
      world.note('failure', `fails: ${pending.point}`);
      pending.fail(new Error(`${pending.point}: made to fail`));
    } else {
      world.note('complete', `goes on: ${pending.point} ${pending.id}`);
      pending.happen();
    }
  }

  async #end(step: 'orderlyEnd' | 'crash' | 'power'): Promise<void> {
    const world = this.#world;
    world.note(step, step);
    if (step === 'power') {
      world.host.restart();
      world.namespaces.clear();
    }
    if (step === 'orderlyEnd' && world.agent.isReady) {
      const { registry } = world.agent.parts;
      const ending = { isOver: false };
      const ended = (): void => void (ending.isOver = true);
      world.agent.run(() => registry.detach()).then(ended, ended);
      for (let turn = 0; turn < DETACH_TURNS_MAX && !ending.isOver; turn += 1)
        await this.#drain(10);
    }
    await world.replaceAgent();
  }

  /** Sandboxes that another agent has taken up match the answers that callers got. */
  async #checkRecovered(): Promise<void> {
    const { agent } = this.#world;
    if (!agent.isReady || agent.generation === this.#checkedAgent) return;
    this.#checkedAgent = agent.generation;
    await checkNow(this.#world);
  }

  /** For a while nothing fails and nobody asks for anything. */
  async #beQuiet(): Promise<void> {
    const world = this.#world;
    world.note('rest', 'for some time nothing fails');
    await this.#rest();
    if (world.broken.length === 0) await checkHeld(world);
  }

  async #comeToRest(): Promise<void> {
    const world = this.#world;
    await this.#beQuiet();
    if (world.broken.length > 0) return;
    // Leftovers that only another agent can clear away must be gone then.
    await world.replaceAgent();
    await this.#rest();
    if (world.broken.length === 0) await checkAtRest(world);
  }

  async #rest(): Promise<void> {
    const world = this.#world;
    const { host, schedule, time } = world;
    world.isRedisAway = false;
    schedule.unstick();
    const until = performance.now() + REST_MS_MAX;
    let calm = 0;
    while (calm < 5) {
      for (const { guest } of host.running) guest.isSilent = false;
      if (world.agent.failure !== undefined) await world.replaceAgent();
      await this.#drain(100);
      const restless = restlessOf(world);
      calm = restless.length === 0 ? calm + 1 : 0;
      if (world.broken.length > 0) return;
      if (performance.now() > until) {
        world.ledger.broken.push(`never comes to rest: ${restless.join(', ')}`);
        return;
      }
      await time.pass(REST_STEP_MS);
    }
  }

  /** Lets what is under way end, and what follows from it. */
  async #drain(count: number): Promise<void> {
    const { schedule, random, time } = this.#world;
    await time.settle();
    for (let turn = 0; turn < count; turn += 1) {
      const pending = schedule.take(random);
      if (pending === undefined) return;
      pending.happen();
      await time.settle();
    }
  }
}

/** A write to the journal fails before anything is written; a machine whenever it likes. */
const canFail = ({ kind, point }: Pending): boolean =>
  kind === 'driver' ||
  kind === 'slots' ||
  kind === 'images' ||
  kind === 'directory' ||
  (kind === 'failpoint' && point.startsWith('before journal'));
