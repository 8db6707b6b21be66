import { constants } from 'node:os';
import { native } from '../native/native.ts';
import { programEnvironment } from './environment.ts';
import { leashed, type LeashOptions } from './leash.ts';

export interface StartOptions extends LeashOptions {
  /** The program's environment variables, in addition to PATH. */
  readonly environment?: Readonly<NodeJS.ProcessEnv> | undefined;
}

/** The signal tells of ends; the timer keeps this process going until they have come. */
const LOOK_EVERY_MS = 1_000;

/** How a program ended: its exit code, or the name of the signal that ended it. */
export type Ending = number | NodeJS.Signals;

const signalNames = new Map(
  Object.entries(constants.signals).map(([name, number]) => [number, name as NodeJS.Signals]),
);

const toEnding = (status: number): Ending =>
  status >= 0 ? status : (signalNames.get(-status) ?? 'SIGKILL');

/** Programs whose ends are waited for. */
const awaited = new Set<StartedProgram>();
/** Programs that nobody waits for: looked for by the timer only, since there may be thousands. */
const left = new Set<StartedProgram>();
let looking: NodeJS.Timeout | undefined;

function reapAll(programs: Set<StartedProgram>): void {
  for (const program of programs) if (program.reap()) programs.delete(program);
  keepLooking();
}

function keepLooking(): void {
  if (awaited.size + left.size === 0) {
    clearInterval(looking);
    looking = undefined;
    return;
  }
  looking ??= setInterval(() => {
    reapAll(left);
    reapAll(awaited);
  }, LOOK_EVERY_MS);
  if (awaited.size > 0) looking.ref();
  else looking.unref();
}

/** A single signal may stand for several ends (signal(7)). */
process.on('SIGCHLD', () => {
  if (awaited.size > 0) reapAll(awaited);
});

/** A program that was started, and how it ended. */
export class StartedProgram {
  readonly pid: number;
  /** Settles when it has ended. */
  readonly ended: Promise<Ending>;
  #ending: Ending | undefined;
  readonly #settle: (ending: Ending) => void;

  constructor(pid: number) {
    this.pid = pid;
    ({ promise: this.ended, resolve: this.#settle } = Promise.withResolvers<Ending>());
    awaited.add(this);
    reapAll(awaited); // The program may have ended before it was recorded here.
  }

  /** Undefined while it runs. */
  get ending(): Ending | undefined {
    return this.#ending;
  }

  /** @returns whether it has ended */
  reap(): boolean {
    const status = native.reap(this.pid);
    if (status === undefined) return false;
    this.#ending = toEnding(status);
    this.#settle(this.#ending);
    return true;
  }

  kill(): void {
    if (this.#ending === undefined) process.kill(this.pid, 'SIGKILL');
  }

  /** Nobody waits for its end any more: it does not keep this process going, and is told later. */
  leave(): void {
    if (awaited.delete(this)) left.add(this);
    keepLooking();
  }
}

/**
 * Starts a program without copying this process, as Node's own `spawn` would (programs.c). It is in
 * a session of its own.
 * @param command its path, and its arguments
 * @param descriptors what it has from 0 on, undefined: /dev/null; they stay open here
 * @throws Error when it cannot be started
 */
export async function startProgram(
  command: readonly [string, ...string[]],
  descriptors: readonly (number | undefined)[],
  { environment }: Pick<StartOptions, 'environment'> = {},
): Promise<StartedProgram> {
  const variables = Object.entries(programEnvironment(environment))
    .filter(([, value]) => value !== undefined)
    .map(([name, value]) => `${name}=${value}`);
  const numbers = descriptors.map((fd) => fd ?? -1);
  return new StartedProgram(await native.spawn(command[0], command, variables, numbers));
}

/** {@link startProgram} for one that ends when this agent ends (`leashed`). */
export const startLeashed = (
  program: string,
  args: readonly string[],
  descriptors: readonly (number | undefined)[],
  options: StartOptions = {},
): Promise<StartedProgram> => startProgram(leashed(program, args, options), descriptors, options);
