import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync } from 'node:fs';
import { mkdir, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { Socket } from 'node:net';
import { dirname, join } from 'node:path';
import type { Duplex } from 'node:stream';
import { errnoOf } from '../../../shared/errors.ts';
import { LIMITS } from '../../../shared/limits.ts';
import { settledWithin } from '../../../shared/settled-within.ts';
import type { ExecLimits } from '../../config.ts';
import { initPath, MountFlag, native, UnmountFlag } from '../../native/native.ts';
import { run } from '../../spawn.ts';
import { execBundle, MOUNT_ROOT } from './bundle.ts';
import { type CgroupHost, oomKills } from './cgroup.ts';
import { InitChannel } from './init-channel.ts';
import { OutputTail } from './output-tail.ts';
import type { SeccompProfile } from './seccomp.ts';

/** What all containers of this host have in common. */
export interface ContainerHost {
  readonly containersDir: string;
  readonly runcRoot: string;
  readonly imageDir: string;
  readonly mountAliases: readonly string[];
  readonly limits: ExecLimits;
  readonly cgroups: CgroupHost;
  readonly cgroupParent: string;
  readonly seccomp: SeccompProfile;
}

export interface ContainerExit {
  readonly exitCode: number;
  /** Start and end of the command, on the clock of `performance.now()`. */
  readonly startedAt: number;
  readonly endedAt: number;
  readonly outOfMemory: boolean;
  readonly stdout: OutputTail;
  readonly stderr: OutputTail;
}

/** Scratch space in memory with a hard size, and the image's tree below it, writable. */
async function mountRoot(host: ContainerHost, directory: string): Promise<string> {
  await mkdir(directory, { mode: 0o700 });
  const flags = MountFlag.nosuid | MountFlag.nodev;
  const size = `size=${host.limits.scratchBytes},mode=0700`;
  await native.mount('tmpfs', directory, 'tmpfs', flags, size);
  const [root, upper, work] = ['root', 'upper', 'work'].map((name) => join(directory, name));
  if (root === undefined || upper === undefined || work === undefined)
    throw new Error('unreachable');
  await Promise.all([mkdir(root), mkdir(upper, { mode: 0o755 }), mkdir(work)]);
  for (const alias of host.mountAliases) {
    await mkdir(join(upper, dirname(alias)), { recursive: true, mode: 0o755 });
    await symlink(MOUNT_ROOT, join(upper, alias));
  }
  const layers = `lowerdir=${host.imageDir},upperdir=${upper},workdir=${work}`;
  await native.mount('overlay', root, 'overlay', flags, layers);
  return root;
}

async function unmountIfMounted(target: string): Promise<void> {
  try {
    await native.unmount(target, UnmountFlag.detach);
  } catch (error) {
    const code = errnoOf(error);
    if (code !== 'EINVAL' && code !== 'ENOENT') throw error;
  }
}

/** Takes a container's scratch space off the host. Idempotent. */
export async function removeContainerFiles(directory: string): Promise<void> {
  await unmountIfMounted(join(directory, 'root'));
  await unmountIfMounted(directory);
  await rm(directory, { recursive: true, force: true });
}

/** Kills a container and removes what runc and the kernel keep of it. Idempotent. */
export async function deleteContainer(runcRoot: string, id: string): Promise<void> {
  await run('runc', ['--root', runcRoot, 'delete', '--force', id]);
}

/** A stream that the container writes to and the agent reads from: a real pipe, not a socket, so
 * that `/dev/stdout` and `/dev/stderr` can be opened inside. */
function outputPipe(tail: OutputTail): { writeFd: number; drained: Promise<void> } {
  const [readFd, writeFd] = native.pipe();
  const socket = new Socket({ fd: readFd, readable: true, writable: false });
  socket.on('data', (chunk: Buffer) => tail.write(chunk));
  socket.on('error', () => socket.destroy());
  const drained = new Promise<void>((resolve) => {
    socket.once('close', () => resolve());
  });
  return { writeFd, drained };
}

/**
 * One single-use container around one command: plain `runc run` of our init, which runs the
 * command.
 */
export class Container {
  readonly #host: ContainerHost;
  readonly #id: string;
  readonly #directory: string;
  readonly #stdout = new OutputTail(LIMITS.outputBytesPerStreamMax);
  readonly #stderr = new OutputTail(LIMITS.outputBytesPerStreamMax);
  #runc: ChildProcess | undefined;
  #init: InitChannel | undefined;
  #killed = false;

  constructor(host: ContainerHost, id: string) {
    this.#host = host;
    this.#id = id;
    this.#directory = join(host.containersDir, id);
  }

  /**
   * Runs the command to its end. Afterwards no process of it is left and the disk is no longer
   * mounted for it; {@link dispose} clears away the rest.
   * @throws Error when the container could not be started or was killed before it could report
   */
  async run(command: string, diskPath: string): Promise<ContainerExit> {
    const rootPath = await mountRoot(this.#host, this.#directory);
    await this.#writeBundle(rootPath, diskPath);
    if (this.#killed) throw new Error('killed before it was started');
    const outputs = [outputPipe(this.#stdout), outputPipe(this.#stderr)] as const;
    const { runc, init } = this.#spawn(outputs[0].writeFd, outputs[1].writeFd);

    let startedAt: number | undefined;
    let exit: Omit<ContainerExit, 'stdout' | 'stderr'> | undefined;
    init.on('started', () => {
      startedAt = performance.now();
    });
    init.on('exited', (exitCode) => {
      const endedAt = performance.now();
      // While init waits for us to close, the control group and its counters still exist.
      void oomKills(this.#host.cgroups, this.#cgroupPath)
        .catch(() => 0)
        .then((kills) => {
          exit = { exitCode, startedAt: startedAt ?? endedAt, endedAt, outOfMemory: kills > 0 };
          init.close();
        });
    });
    init.run(command);

    const [runcCode] = (await once(runc, 'exit')) as [number | null];
    await Promise.all(outputs.map((output) => output.drained));
    if (exit !== undefined) return { ...exit, stdout: this.#stdout, stderr: this.#stderr };
    if (this.#killed) throw new Error('killed');
    // The whole group, init included, may be what the kernel chose when memory ran out.
    if (startedAt !== undefined) return this.#killedFromOutside(startedAt);
    throw new Error(`runc ended with ${String(runcCode)}: ${await this.#runcLog()}`);
  }

  /** Ends the command and everything that it started. {@link run} rejects. */
  async kill(): Promise<void> {
    this.#killed = true;
    const runc = this.#runc;
    if (runc === undefined || runc.exitCode !== null) return;
    const gone = once(runc, 'exit');
    this.#init?.close();
    if (await settledWithin(gone, LIMITS.killGraceMs / 2)) return;
    await deleteContainer(this.#host.runcRoot, this.#id);
  }

  /** Clears away the container's files. Idempotent. */
  async dispose(): Promise<void> {
    await removeContainerFiles(this.#directory);
  }

  get #cgroupPath(): string {
    return `${this.#host.cgroupParent}/${this.#id}`;
  }

  async #writeBundle(rootPath: string, diskPath: string): Promise<void> {
    const { cgroups, limits, seccomp } = this.#host;
    const bundle = execBundle({
      rootPath,
      initPath,
      diskPath,
      cgroupPath: this.#cgroupPath,
      controllers: cgroups.controllers,
      limits,
      seccomp,
    });
    await writeFile(join(this.#directory, 'config.json'), JSON.stringify(bundle));
  }

  #spawn(stdoutFd: number, stderrFd: number): { runc: ChildProcess; init: InitChannel } {
    const log = join(this.#directory, 'runc.log');
    const runc = spawn(
      'runc',
      [
        ...['--root', this.#host.runcRoot, '--log', log],
        ...['run', '--preserve-fds', '1', '--bundle', this.#directory, this.#id],
      ],
      { stdio: ['ignore', stdoutFd, stderrFd, 'pipe'], detached: true, env: {} },
    );
    closeSync(stdoutFd);
    closeSync(stderrFd);
    this.#runc = runc;
    this.#init = new InitChannel(runc.stdio[3] as Duplex);
    return { runc, init: this.#init };
  }

  #killedFromOutside(startedAt: number): ContainerExit {
    return {
      exitCode: 137,
      startedAt,
      endedAt: performance.now(),
      outOfMemory: true,
      stdout: this.#stdout,
      stderr: this.#stderr,
    };
  }

  async #runcLog(): Promise<string> {
    try {
      return (await readFile(join(this.#directory, 'runc.log'), 'utf8')).slice(-1000);
    } catch {
      return this.#stderr.read().toString('utf8').slice(-1000);
    }
  }
}
