/*
 * Variables that the agent was started with and that are no settings (shared/settings), read once.
 * Nothing else of the agent reads process.env (test/structure/environment.test.ts).
 */
const {
  PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin',
  UV_THREADPOOL_SIZE,
  FAILPOINTS,
  ...others
} = process.env;

/** The size of libuv's pool, where it was chosen. */
export const chosenPoolThreads = Number(UV_THREADPOOL_SIZE) || undefined;

/** The file of the failpoints (failpoint.ts). */
export const failpointsFile = FAILPOINTS;

/** Variables of Ceph's programs, for the operator's program that fences hosts. */
export const cephVariables: Readonly<NodeJS.ProcessEnv> = Object.fromEntries(
  Object.entries(others).filter(([name]) => name.startsWith('CEPH_')),
);

/**
 * The whole environment of a program that the agent starts: PATH, and what its start names. The
 * agent's own may have the cluster's secrets.
 */
export const programEnvironment = (named: Readonly<NodeJS.ProcessEnv> = {}): NodeJS.ProcessEnv => ({
  PATH,
  ...named,
});
