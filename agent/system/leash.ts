import { leashPath } from '../native/native.ts';

/** The cgroup.procs that programs join; undefined: they stay in that of this process. */
let joined: string | undefined;

/** Makes the programs started from now on join a control group. @param group its cgroup.procs */
export function keepProgramsIn(group: string): void {
  joined = group;
}

export interface LeashOptions {
  /** A file that the program holds locked while it runs. */
  readonly lock?: string | undefined;
  /** The same for a program that only reads the file: others may read it meanwhile. */
  readonly sharedLock?: string | undefined;
  /** `cgroup.procs` files of further control groups that the program joins. */
  readonly groups?: readonly string[];
}

/**
 * The command that runs a program so that it ends when this agent ends, for whatever reason; the
 * host's next agent waits for its end (leash.c).
 */
export function leashed(
  program: string,
  args: readonly string[],
  { lock, sharedLock, groups = [] }: LeashOptions = {},
): readonly [string, ...string[]] {
  const all = joined === undefined ? groups : [joined, ...groups];
  return [
    leashPath,
    String(process.pid),
    ...all.flatMap((group) => ['--group', group]),
    ...(lock === undefined ? [] : ['--lock', lock]),
    ...(sharedLock === undefined ? [] : ['--lock-shared', sharedLock]),
    ...['--', program, ...args],
  ];
}
