import { toError } from '../../shared/errors.ts';
import { Coverage } from './coverage.ts';
import { mutate } from './mutate.ts';
import { Random } from '../helpers/random.ts';
import type { Target } from './target.ts';

export interface FuzzPlan {
  readonly seed: number;
  /** Inputs that are tried first, in this order, and then mutated. */
  readonly corpus: readonly Buffer[];
  readonly executions: number;
  /** When the run ends, by performance.now(). Undefined: only after the executions. */
  readonly until?: number | undefined;
  /** Whether to keep inputs that run new code: slower, and not needed for a replay. */
  readonly isGuided: boolean;
}

export interface FuzzReport {
  readonly executions: number;
  /** The inputs that ran code which no earlier input had. */
  readonly found: readonly Buffer[];
  readonly failure?: { readonly input: Buffer; readonly error: Error };
}

/** How many inputs to run between two readings of the coverage, which are expensive. */
const BATCH = 64;
/** An input that takes longer than this is a defect: too much work for so few bytes. */
const EXECUTION_MS_MAX = 5_000;
const FOUND_BYTES_MAX = 4096;

class Failed extends Error {
  readonly input: Buffer;

  constructor(input: Buffer, cause: Error) {
    super(cause.message, { cause });
    this.input = input;
  }
}

/** Runs a target with its corpus, then with mutations, until the plan ends or a check fails. */
export async function fuzz(target: Target, plan: FuzzPlan): Promise<FuzzReport> {
  const run = new FuzzRun(target, plan);
  await using _opened = await target.open?.();
  return await run.finish();
}

class FuzzRun {
  readonly #target: Target;
  readonly #plan: FuzzPlan;
  readonly #random: Random;
  readonly #corpus: Buffer[];
  readonly #found: Buffer[] = [];
  #executions = 0;

  constructor(target: Target, plan: FuzzPlan) {
    this.#target = target;
    this.#plan = plan;
    this.#random = new Random(plan.seed, 'fuzz');
    this.#corpus = [...plan.corpus];
  }

  async finish(): Promise<FuzzReport> {
    try {
      using coverage = this.#plan.isGuided ? new Coverage() : undefined;
      for (const input of this.#plan.corpus) await this.#execute(input);
      coverage?.takeNew();
      while (!this.#isOver()) await this.#runBatch(coverage);
      return { executions: this.#executions, found: this.#found };
    } catch (error) {
      if (!(error instanceof Failed)) throw error;
      const failure = { input: error.input, error: toError(error.cause) };
      return { executions: this.#executions, found: this.#found, failure };
    }
  }

  #isOver(): boolean {
    const { executions, until = Infinity } = this.#plan;
    return this.#executions >= executions || performance.now() >= until;
  }

  async #runBatch(coverage: Coverage | undefined): Promise<void> {
    const batch: Buffer[] = [];
    while (batch.length < BATCH && !this.#isOver()) {
      const input = mutate(this.#corpus, this.#target.words, this.#random);
      batch.push(input);
      await this.#execute(input);
    }
    if (coverage?.peekNew() !== true) return;
    for (const input of batch) {
      await this.#execute(input);
      if (coverage.takeNew() && input.length <= FOUND_BYTES_MAX) {
        this.#corpus.push(input);
        this.#found.push(input);
      }
    }
  }

  async #execute(input: Buffer): Promise<void> {
    this.#executions += 1;
    const begunAt = performance.now();
    try {
      await this.#target.run(input);
    } catch (error) {
      throw new Failed(input, toError(error));
    }
    const tookMs = performance.now() - begunAt;
    if (tookMs > EXECUTION_MS_MAX) {
      throw new Failed(input, new Error(`it took ${Math.round(tookMs)} ms`));
    }
  }
}
