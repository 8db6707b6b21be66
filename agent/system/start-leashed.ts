import { constants } from 'node:os';
import { leashPath, native } from '../native/native.ts';
import { leashArguments } from './spawn.ts';

/** The signal tells of ends; the timer keeps this process going until they have come. */
const LOOK_EVERY_MS = 1_000;

/** How a program ended: its exit code, or the name of the signal that ended it. */
export type Ending = number | NodeJS.Signals;

const signalNames = new Map(
  Object.entries(constants.signals).map(([name, number]) => [number, name as NodeJS.Signals]),
);

const toEnding = (status: number): Ending =>
  status >= 0 ? status : (signalNames.get(-status) ?? 'SIGKILL');

/** A program that was started, and how it ended. */
export class LeashedProgram {
  readonly pid: number;
  /** Settles when it has ended. */
  readonly ended: Promise<Ending>;
  #ending: Ending | undefined;
  readonly #settle: (ending: Ending) => void;

  constructor(pid: number) {
    this.pid = pid;
    ({ promise: this.ended, resolve: this.#settle } = Promise.withResolvers<Ending>());
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
}

const running = new Set<LeashedProgram>();
let looking: NodeJS.Timeout | undefined;

/** A single signal may stand for several ends (signal(7)). */
function reapAll(): void {
  for (const program of running) if (program.reap()) running.delete(program);
  if (running.size > 0) return;
  clearInterval(looking);
  looking = undefined;
}

process.on('SIGCHLD', reapAll);

/**
 * Starts a program as `spawnLeashed` does, for one that is started so often that the cost of a start
 * counts (programs.c). It has no environment but PATH, and /dev/null as stdin, stdout and stderr.
 * @param descriptors what it has from descriptor 3 on; they stay open here
 * @throws Error when it cannot be started
 */
export async function startLeashed(
  program: string,
  args: readonly string[],
  descriptors: readonly number[],
): Promise<LeashedProgram> {
  const command = [leashPath, ...leashArguments(), '--', program, ...args];
  const started = new LeashedProgram(await native.spawn(leashPath, command, descriptors));
  running.add(started);
  looking ??= setInterval(reapAll, LOOK_EVERY_MS);
  reapAll(); // The program may have ended before it was recorded here.
  return started;
}
