/**
 * A coding agent that tries several changes at once: it prepares one sandbox, forks it for each
 * attempt, disk, memory and all, and keeps the first whose tests pass. Attempts cannot spoil each
 * other.
 */
import type { Berth, Sandbox } from '@berth/sdk';

/** A change that somebody, such as a language model, proposes: a shell command that makes it. */
export interface Attempt {
  readonly name: string;
  readonly command: string;
}

export interface Outcome {
  readonly name: string;
  readonly passed: boolean;
  /** The change, as `diff` shows it. */
  readonly diff: string;
}

export interface Task {
  /** Brings the sources, and everything that their tests need. */
  readonly prepare: string;
  readonly test: string;
  readonly attempts: readonly Attempt[];
}

async function tryOut(base: Sandbox, attempt: Attempt, test: string): Promise<Outcome> {
  await using copy = await base.fork();
  const inSources = { cwd: '/work' } as const;
  const change = await copy.run(attempt.command, inSources);
  if (change.exitCode !== 0) return { name: attempt.name, passed: false, diff: change.stderr };
  const { exitCode } = await copy.run(test, { ...inSources, timeoutSeconds: 600 });
  const { stdout: diff } = await copy.run('diff -ru /original /work', inSources);
  return { name: attempt.name, passed: exitCode === 0, diff };
}

/** @returns what became of each attempt, in the order in which they were given */
export async function solve(berth: Berth, { prepare, test, attempts }: Task): Promise<Outcome[]> {
  await using base = await berth.sandboxes.create({ mem_size_mib: 256 });
  const prepared = await base.run(`mkdir /work && cd /work && ${prepare} && cp -a /work /original`);
  if (prepared.exitCode !== 0) throw new Error(`the sources are not ready: ${prepared.stderr}`);
  return await Promise.all(attempts.map((attempt) => tryOut(base, attempt, test)));
}
