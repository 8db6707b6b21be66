import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { killGroup, removeCgroups } from '../system/cgroup.ts';
import type { HostGroups } from '../system/helper-group.ts';
import { makeLimitedGroup } from '../system/limited-group.ts';
import { ProgramError, spawnLeashed } from '../system/spawn.ts';
import { started } from '../system/started.ts';

const OUTPUT_BYTES_MAX = 64 * 1024;
const KILL_MS_MAX = 5_000;
/** Descriptor of {@link ToolRun.secret} in the program. */
const SECRET_FD = 3;

/** A run of a program on untrusted files. It sees nothing but what is listed. */
export interface ToolRun {
  readonly program: string;
  readonly args: readonly string[];
  /** Host directories and files that it sees, read-only, by the place where it sees them. */
  readonly reads?: Readonly<Record<string, string>>;
  /** Directories that it writes to, likewise. */
  readonly writes: Readonly<Record<string, string>>;
  /**
   * A user without rights; undefined: root without capabilities but {@link capabilities}, and
   * without `/proc`, whose files root may write.
   */
  readonly uid?: number | undefined;
  readonly capabilities?: readonly string[];
  /** A network namespace; undefined: none but its own, empty one. */
  readonly namespace?: string | undefined;
  readonly env?: Readonly<Record<string, string>>;
  /** A descriptor that it alone gets, at {@link secretPath}. */
  readonly secret?: number | undefined;
  readonly memoryBytes: number;
  readonly processes: number;
  /** Limit of any one file. */
  readonly fileBytes: number;
  readonly outputBytesMax?: number;
  readonly signal: AbortSignal;
}

export const secretPath = `/proc/self/fd/${SECRET_FD}`;

/** The program itself and its libraries, and what it needs to know servers. */
const SYSTEM = [
  ...['--ro-bind', '/usr', '/usr'],
  ...['bin', 'sbin', 'lib', 'lib64'].flatMap((name) => ['--symlink', `usr/${name}`, `/${name}`]),
  ...['--perms', '0755', '--dir', '/etc'],
];

/** Nothing that it starts outlives it, and it outlives the agent in no case. */
const ISOLATION = [
  ...['--unshare-pid', '--unshare-ipc', '--unshare-uts', '--hostname', 'build'],
  ...['--die-with-parent', '--new-session', '--clearenv', '--setenv', 'PATH', '/usr/bin'],
  ...['--chdir', '/', '--cap-drop', 'ALL'],
];

const binds = (kind: string, paths: Readonly<Record<string, string>>): string[] =>
  Object.entries(paths).flatMap(([inside, outside]) => [kind, outside, inside]);

/** The whole command line. Pure. */
function confinedCommand(run: ToolRun): [string, ...string[]] {
  const { uid, capabilities = [], namespace, env = {}, fileBytes } = run;
  const kept = uid === undefined ? capabilities : ['CAP_SETUID', 'CAP_SETGID'];
  const asUser =
    uid === undefined
      ? []
      : [
          'setpriv',
          `--reuid=${uid}`,
          `--regid=${uid}`,
          '--clear-groups',
          '--bounding-set=-all',
          '--',
        ];
  return [
    ...(namespace === undefined ? [] : ['nsenter', `--net=${namespace}`, '--']),
    ...['prlimit', '--core=0', `--fsize=${fileBytes}`, '--nofile=1024', '--', 'bwrap'],
    ...(namespace === undefined ? ['--unshare-net'] : []),
    ...ISOLATION,
    ...kept.flatMap((capability) => ['--cap-add', capability]),
    ...SYSTEM,
    ...(uid === undefined ? [] : ['--proc', '/proc', '--dev', '/dev']),
    ...['--tmpfs', '/tmp', '--tmpfs', '/var/tmp'],
    ...binds('--ro-bind-try', run.reads ?? {}),
    ...binds('--bind', run.writes),
    ...Object.entries(env).flatMap(([name, value]) => ['--setenv', name, value]),
    ...['--', ...asUser, run.program, ...run.args],
  ] as [string, ...string[]];
}

/**
 * Runs a program to its end, confined (bubblewrap) and bounded (a control group of its own).
 * @returns its standard output
 * @throws ProgramError with its last words when it fails; the signal's reason, once all of it is
 *   dead
 */
export async function runConfined(groups: HostGroups, run: ToolRun): Promise<string> {
  run.signal.throwIfAborted();
  const group = `${groups.cgroupParent}/image-${randomBytes(6).toString('hex')}`;
  const { memoryBytes, processes } = run;
  const joined = await makeLimitedGroup(groups.cgroups, group, { memoryBytes, processes });
  const kill = (): Promise<number[]> => killGroup(groups.cgroups, group, KILL_MS_MAX);
  try {
    return await runToEnd(run, joined, kill);
  } finally {
    await kill();
    await removeCgroups(groups.cgroups, group);
  }
}

async function runToEnd(
  run: ToolRun,
  joined: readonly string[],
  kill: () => Promise<unknown>,
): Promise<string> {
  const { secret, signal, outputBytesMax = OUTPUT_BYTES_MAX } = run;
  const [command, ...args] = confinedCommand(run);
  const child = await started(
    spawnLeashed(command, args, {
      stdio: ['ignore', 'pipe', 'pipe', ...(secret === undefined ? [] : [secret])],
      groups: joined,
      cwd: '/',
    }),
  );
  const [stdout, stderr] = [
    collect(child.stdout, outputBytesMax),
    collect(child.stderr, OUTPUT_BYTES_MAX),
  ];
  const abort = (): void => {
    child.kill('SIGKILL');
    kill().catch(() => undefined); // Tried again at the end.
  };
  signal.addEventListener('abort', abort, { once: true });
  if (signal.aborted) abort();
  try {
    const [code, ending] = (await once(child, 'close')) as [number | null, string | null];
    signal.throwIfAborted();
    if (code !== 0) throw new ProgramError(run.program, code ?? String(ending), stderr());
    return stdout();
  } finally {
    signal.removeEventListener('abort', abort);
  }
}

/** The first bytes of a stream; the others are read and dropped, so that the program goes on. */
function collect(stream: NodeJS.ReadableStream | null, bytesMax: number): () => string {
  const chunks: Buffer[] = [];
  let length = 0;
  stream?.on('data', (chunk: Buffer) => {
    if (length >= bytesMax) return;
    chunks.push(chunk.subarray(0, bytesMax - length));
    length += chunk.length;
  });
  return () => Buffer.concat(chunks).toString('utf8');
}
