import { once } from 'node:events';
import { closeSync } from 'node:fs';
import { readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { runInBackground } from '../../shared/background.ts';
import { errnoOf } from '../../shared/errors.ts';
import { LIMITS } from '../../shared/limits.ts';
import { settledWithin } from '../../shared/settled-within.ts';
import { inSpan } from '../../shared/spans.ts';
import type { ExecLimits } from '../machines/oci/exec-limits.ts';
import { MountAttribute, native, UnmountFlag } from '../native/native.ts';
import { ProgramError, run } from '../system/spawn.ts';
import { startLeashed, type StartedProgram } from '../system/start-program.ts';
import { attachDirectory } from '../disks/disk-calls.ts';
import { refusedPath } from '../disks/refused-path.ts';
import { execBundle } from '../machines/oci/bundle.ts';
import { type CgroupHost, killGroup, oomKills, removeCgroups } from '../system/cgroup.ts';
import { type ContainerCommand, InitChannel } from './init-channel.ts';
import { OutputPipe } from './output-pipe.ts';
import type { OutputSink, OutputTail, TailStorage } from './output-tail.ts';
import type { ContainerUsers, UserRanges } from '../machines/oci/container-users.ts';
import { makeDirectories, mountScratch, removeScratch, scratchPaths } from './scratch.ts';
import type { SeccompProfile } from '../machines/oci/seccomp.ts';
import { SCHEMA_LIMITS } from '../../shared/schemas/limits.ts';

/** Settings that all containers of this host share. */
export interface ContainerHost {
  readonly containersDir: string;
  readonly runcRoot: string;
  readonly imageDir: string;
  /** ENV of the image. */
  readonly environment?: Readonly<Record<string, string>>;
  readonly mountAliases: readonly string[];
  readonly limits: ExecLimits;
  readonly cgroups: CgroupHost;
  readonly cgroupParent: string;
  readonly seccomp: SeccompProfile;
  readonly hiddenPaths: readonly string[];
  /** Undefined where the kernel does not support it: root inside is then root of the host. */
  readonly userRanges: UserRanges | undefined;
  /** Where output that is too long for memory is kept. */
  readonly tails: TailStorage;
}

/** A disk, or a directory of one, as a command sees it. */
export interface ContainerMount {
  /** Where the disk is mounted on the host. */
  readonly diskPath: string;
  /** A directory on the disk, resolved beneath its root; empty: the root. */
  readonly subdirectory: string;
  /** Below the mount root; empty: the mount root itself. */
  readonly path: string;
  readonly readOnly: boolean;
  /** Mounts it so that nothing on it can be executed and no link on it is followed. */
  readonly dataOnly: boolean;
}

const attributesOf = ({ readOnly, dataOnly }: ContainerMount): number =>
  (readOnly ? MountAttribute.readOnly : 0) |
  (dataOnly ? MountAttribute.noExec | MountAttribute.noSymlinkFollow : 0);

export interface ContainerExit {
  readonly exitCode: number;
  /** Start and end of the command, on the clock of `performance.now()`. */
  readonly startedAt: number;
  readonly endedAt: number;
  readonly outOfMemory: boolean;
  /** The caller closes both after reading them. */
  readonly stdout: OutputTail;
  readonly stderr: OutputTail;
}

const EXIT_KILLED = 137;

function openOutputs(tails: TailStorage): [stdout: OutputPipe, stderr: OutputPipe] {
  const stdout = new OutputPipe(SCHEMA_LIMITS.outputBytesPerStreamMax, tails);
  try {
    return [stdout, new OutputPipe(SCHEMA_LIMITS.outputBytesPerStreamMax, tails)];
  } catch (error) {
    stdout.close();
    throw error;
  }
}

/** Kills a container and removes its runc state and control groups. Idempotent. */
async function deleteContainer(runcRoot: string, id: string): Promise<void> {
  await run('runc', ['--root', runcRoot, 'delete', '--force', id]);
}

/** Discards a command's kept output. */
export async function closeTails(...tails: readonly OutputTail[]): Promise<void> {
  await Promise.all(tails.map((tail) => tail.close()));
}

/**
 * A single-use container: `runc run` starts our init, which runs the one command. The pool starts
 * containers before commands arrive, because starting one takes much longer than most commands run;
 * the disks are mounted into the container when its command arrives.
 */
export class Container {
  readonly id: string;
  readonly #host: ContainerHost;
  readonly #directory: string;
  readonly #stdout: OutputPipe;
  readonly #stderr: OutputPipe;
  readonly #gone = Promise.withResolvers<void>();
  #runc: StartedProgram | undefined;
  #init: InitChannel | undefined;
  /** Settles when {@link run} no longer needs the container's directory. */
  #finished: Promise<void> = Promise.resolve();
  #killed = false;
  /** The tails are the caller's, who closes them. */
  #tailsGiven = false;
  #mounted: string[] = [];
  #leavesOpen = false;
  #users: ContainerUsers | undefined;

  /** @throws Error when the agent is out of file descriptors; nothing is left open then */
  constructor(host: ContainerHost, id: string) {
    [this.#stdout, this.#stderr] = openOutputs(host.tails);
    this.id = id;
    this.#host = host;
    this.#directory = join(host.containersDir, id);
  }

  /** Whether a disk was still in use when the command had ended. */
  get leavesOpen(): boolean {
    return this.#leavesOpen;
  }

  /** Settles when nothing of the container is left on the host. */
  get gone(): Promise<void> {
    return this.#gone.promise;
  }

  get isUsable(): boolean {
    return !this.#killed && this.#runc !== undefined && this.#runc.ending === undefined;
  }

  /**
   * Starts the container; it then waits for {@link run}.
   * @throws Error with the end of runc's log; nothing of the container is left then
   */
  async start(): Promise<void> {
    const { imageDir, mountAliases, limits } = this.#host;
    try {
      const users = await this.#host.userRanges?.take();
      this.#users = users;
      if (users !== undefined) {
        this.#stdout.giveTo(users.firstId);
        this.#stderr.giveTo(users.firstId);
      }
      const spec = { imageDir, mountAliases, sizeBytes: limits.scratchBytes, users };
      await mountScratch(this.#directory, spec);
      await this.#writeBundle();
      await this.#startRunc();
    } catch (error) {
      this.#closeOutputs();
      await this.#clearAway();
      throw error;
    }
  }

  /**
   * Runs the command to its end. Afterwards none of its processes is left and the disks are no
   * longer mounted for it. Call it once.
   * @param command called when all is mounted; nothing of the command has run before
   * @param output receives stdout while the command runs; without it, the last part is kept
   * @throws AppError `bad_request` when a subdirectory cannot be mounted; Error when the container
   *   was killed
   */
  async run(
    command: () => ContainerCommand,
    mounts: readonly ContainerMount[],
    output?: OutputSink,
  ): Promise<ContainerExit> {
    const runc = this.#runc;
    const init = this.#init;
    if (runc === undefined || init === undefined || !this.isUsable)
      throw new Error('the container is not running');
    if (output !== undefined) this.#stdout.redirect(output);
    const finished = Promise.withResolvers<void>();
    this.#finished = finished.promise;
    try {
      await inSpan({ name: 'container.mount' }, async () => {
        for (const mount of mounts) await this.#attach(mount);
      });
      const runcEnded = runc.ended.then(() => undefined);
      return await this.#runCommand(command, init, runcEnded);
    } finally {
      await inSpan({ name: 'container.unmount' }, () => this.#detachAll()).finally(
        finished.resolve,
      );
      // The answer need not wait for runc's clean-up: the processes are dead, the disks unmounted.
      init.close();
    }
  }

  /** Ends the command and everything that it started; {@link run} rejects. */
  async kill(): Promise<void> {
    this.#killed = true;
    const runc = this.#runc;
    if (runc === undefined || runc.ending !== undefined) return;
    this.#init?.close();
    if (await settledWithin(runc.ended, LIMITS.killGraceMs / 2)) return;
    await deleteContainer(this.#host.runcRoot, this.id);
  }

  get #cgroupPath(): string {
    return `${this.#host.cgroupParent}/${this.id}`;
  }

  async #writeBundle(): Promise<void> {
    const { cgroups, limits, seccomp, hiddenPaths, environment = {} } = this.#host;
    const { root, mounts, devices, config } = scratchPaths(this.#directory);
    const users = this.#users;
    const bundle = execBundle({
      rootPath: root,
      devicesPath: devices,
      mountPath: mounts,
      cgroupPath: this.#cgroupPath,
      controllers: cgroups.controllers,
      limits,
      seccomp,
      hiddenPaths,
      environment,
      users: users && {
        mappings: users.mappings,
        namespacePath: `/proc/${process.pid}/fd/${users.namespace}`,
      },
    });
    await writeFile(config, JSON.stringify(bundle));
  }

  async #startRunc(): Promise<void> {
    if (this.#killed) throw new Error('the container was killed before it started');
    const args = [
      ...['--root', this.#host.runcRoot, '--log', scratchPaths(this.#directory).runcLog],
      ...['run', '--preserve-fds', '3', '--bundle', this.#directory, this.id],
    ];
    const [own, ofInit] = native.socketPair();
    this.#init = InitChannel.of(own);
    const ready = once(this.#init, 'ready').then(() => true);
    ready.catch(() => undefined);
    let runc: StartedProgram;
    try {
      const nothing = [undefined, undefined, undefined];
      const outputs = [this.#stdout.writeFd, this.#stderr.writeFd];
      runc = await startLeashed('runc', args, [...nothing, ofInit, ...outputs]);
    } catch (error) {
      this.#init.close();
      throw error;
    } finally {
      closeSync(ofInit);
    }
    this.#runc = runc;
    this.#stdout.closeWriteEnd();
    this.#stderr.closeWriteEnd();
    const isReady = await Promise.race([ready, runc.ended.then(() => false)]);
    if (!isReady) throw new ProgramError('runc', await runc.ended, await this.#runcLog());
    runInBackground('container.clearAway', async () => {
      await runc.ended;
      await this.#clearAway();
    });
  }

  async #attach(mount: ContainerMount): Promise<void> {
    const { diskPath, subdirectory, path } = mount;
    if (this.#killed) throw new Error('the container was killed');
    const { mounts } = scratchPaths(this.#directory);
    const target = join(mounts, path);
    const { firstId = 0, namespace = -1 } = this.#users ?? {};
    if (path !== '') await makeDirectories(mounts, path, firstId);
    try {
      await attachDirectory(diskPath, subdirectory, target, attributesOf(mount), namespace);
    } catch (error) {
      throw refusedPath(error, subdirectory);
    }
    this.#mounted.push(target);
  }

  async #detachAll(): Promise<void> {
    for (const target of this.#mounted.toReversed()) {
      try {
        await native.unmount(target, 0); // Fails while a process in the container still uses the mount.
      } catch (error) {
        if (errnoOf(error) !== 'EBUSY') throw error;
        this.#leavesOpen = true;
        await this.kill();
        await native.unmount(target, UnmountFlag.detach);
      }
    }
    this.#mounted = [];
  }

  async #runCommand(
    command: () => ContainerCommand,
    init: InitChannel,
    runcEnded: Promise<undefined>,
  ): Promise<ContainerExit> {
    let startedAt: number | undefined;
    init.once('started', () => {
      startedAt = performance.now();
    });
    const exited = (once(init, 'exited') as Promise<[number]>).then(([code]) => code);
    exited.catch(() => undefined);
    init.run(command());
    const exitCode = await inSpan({ name: 'command' }, () => Promise.race([exited, runcEnded]));
    const endedAt = performance.now();
    if (this.#killed) throw new Error('the container was killed');
    // When memory ran out, the kernel may have killed init.
    if (exitCode === undefined && startedAt === undefined) throw new Error(await this.#runcLog());
    // While init waits for us to close, the control group and its counters still exist.
    const { cgroups } = this.#host;
    const kills = exitCode === undefined ? 1 : await oomKills(cgroups, this.#cgroupPath);
    const isKilled = (): boolean => this.#killed;
    await Promise.all([this.#stdout.drain(isKilled), this.#stderr.drain(isKilled)]);
    if (this.#killed) throw new Error('the container was killed');
    this.#tailsGiven = true;
    return {
      exitCode: exitCode ?? EXIT_KILLED,
      startedAt: startedAt ?? endedAt,
      endedAt,
      outOfMemory: kills > 0,
      stdout: this.#stdout.tail,
      stderr: this.#stderr.tail,
    };
  }

  /** Cleans up after a runc that was killed, for example when memory ran out. */
  async #clearAfterRunc(): Promise<void> {
    const { cgroups, runcRoot } = this.#host;
    this.#init?.close();
    await killGroup(cgroups, this.#cgroupPath, LIMITS.killGraceMs);
    await removeCgroups(cgroups, this.#cgroupPath);
    await rm(join(runcRoot, this.id), { recursive: true, force: true });
  }

  async #clearAway(): Promise<void> {
    try {
      await this.#finished;
      if (typeof this.#runc?.ending === 'string') await this.#clearAfterRunc();
      await removeScratch(this.#directory);
      this.#users?.release();
      this.#gone.resolve();
    } catch (error) {
      this.#gone.reject(error);
    } finally {
      this.#closeOutputs();
    }
  }

  #closeOutputs(): void {
    this.#stdout.close();
    this.#stderr.close();
    if (this.#tailsGiven) return;
    runInBackground('output.close', () => closeTails(this.#stdout.tail, this.#stderr.tail));
  }

  async #runcLog(): Promise<string> {
    try {
      return (await readFile(scratchPaths(this.#directory).runcLog, 'utf8')).slice(-1000);
    } catch {
      return (await this.#stderr.tail.read()).toString('utf8').slice(-1000);
    }
  }
}
