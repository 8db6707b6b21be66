import { runInBackground } from '../../shared/background.ts';
import { AppError } from '../../shared/errors.ts';
import { LIMITS } from '../../shared/limits.ts';
import { onBehalfOf } from '../disks/disk-threads.ts';
import { openDiskFile } from '../disks/disk-file.ts';
import { DiskActor, type DiskActorDeps, type DiskRef } from '../disks/disk-actor.ts';
import type { CommandActor } from './command-actor.ts';
import { ExecActor, type ExecReport, type ExecSpec } from './exec-actor.ts';
import { GrepActor, type GrepActorDeps, type GrepReport, type GrepSpec } from './grep-actor.ts';

/** All actors of this host by id. The only place where actors are made and forgotten. */
export class ActorRegistry {
  readonly #diskDeps: DiskActorDeps;
  readonly #commandDeps: GrepActorDeps;
  readonly #disks = new Map<string, DiskActor>();
  /** What runs in a container or waits for its turn, for execs and searches alike. */
  readonly #commands = new Map<string, CommandActor>();
  /** Cancelled before they were here: the word may overtake the job. */
  readonly #cancelledEarly = new Set<string>();

  constructor(diskDeps: DiskActorDeps, commandDeps: GrepActorDeps) {
    this.#diskDeps = diskDeps;
    this.#commandDeps = commandDeps;
  }

  get execsRunning(): number {
    return this.#commandDeps.slots.used;
  }

  get execsWaiting(): number {
    return this.#commandDeps.slots.waiting;
  }

  disk(ref: DiskRef): DiskActor {
    const known = this.#disks.get(ref.diskId);
    if (known !== undefined) return known;
    const actor = new DiskActor(this.#diskDeps, ref);
    this.#disks.set(ref.diskId, actor);
    return actor;
  }

  /** Runs a command to its end; see {@link ExecActor.run}. */
  async runExec(spec: ExecSpec, onBegun: () => void): Promise<ExecReport> {
    const disks = this.#disksOf(spec.accountId, spec.mounts);
    return this.#run(spec.id, new ExecActor(this.#commandDeps, spec, disks), onBegun);
  }

  /** Searches a disk; see {@link GrepActor.run}. */
  async runGrep(spec: GrepSpec, onBegun: () => void): Promise<GrepReport> {
    const disks = this.#disksOf(spec.accountId, [spec]);
    return this.#run(spec.id, new GrepActor(this.#commandDeps, spec, disks), onBegun);
  }

  #disksOf(accountId: string, of: readonly { diskId: string }[]): ReadonlyMap<string, DiskActor> {
    const diskIds = new Set(of.map(({ diskId }) => diskId));
    return new Map([...diskIds].map((diskId) => [diskId, this.disk({ accountId, diskId })]));
  }

  async #run<T>(
    id: string,
    actor: { readonly command: CommandActor; run(onBegun: () => void): Promise<T> },
    onBegun: () => void,
  ): Promise<T> {
    if (this.#commands.has(id)) {
      throw new AppError('outcome_unknown', 'the command was begun before');
    }
    this.#commands.set(id, actor.command);
    if (this.#cancelledEarly.delete(id)) this.cancel(id);
    try {
      return await actor.run(onBegun);
    } finally {
      runInBackground('exec.forget', async () => {
        await actor.command.cleared;
        this.#commands.delete(id);
      });
    }
  }

  /** Ends a command, or keeps it from starting when it comes; it may have ended by itself. */
  cancel(id: string): void {
    const command = this.#commands.get(id);
    if (command !== undefined) return command.end(new AppError('cancelled', 'the caller hung up'));
    this.#cancelledEarly.add(id);
    setTimeout(() => this.#cancelledEarly.delete(id), LIMITS.hostJobTimeoutMs).unref();
  }

  /** @throws AppError `not_found`, or `bad_request` when this is no regular file */
  async statFile(ref: DiskRef, key: string, clientId: string): Promise<{ sizeBytes: number }> {
    const claim = await this.disk(ref).claim(clientId, () => undefined);
    try {
      return await onBehalfOf(ref.accountId, undefined, async () => {
        await using file = await openDiskFile(claim.path, key);
        return { sizeBytes: Number(file.stats.size) };
      });
    } finally {
      claim.release();
    }
  }

  /** How many disks are set aside, since their storage does not answer. */
  get disksSetAside(): number {
    return [...this.#disks.values()].filter(({ isSetAside }) => isSetAside).length;
  }

  async deleteDisk(ref: DiskRef): Promise<void> {
    await this.disk(ref).delete();
    this.#disks.delete(ref.diskId);
  }

  /** Ends every command, begun or not, with the same reason. */
  endAll(reason: AppError): void {
    for (const command of this.#commands.values()) command.end(reason);
  }

  /** Ends every command that can fill the storage. */
  endWriters(reason: AppError): void {
    for (const command of this.#commands.values()) if (command.writesToDisks) command.end(reason);
  }

  /** Gives every disk up; whatever uses one is ended. */
  async giveUpDisks(reason: AppError): Promise<void> {
    await Promise.all([...this.#disks.values()].map((disk) => disk.close(reason)));
  }

  /**
   * Refuses commands that were not begun, and lets other hosts have the disks that nothing uses.
   * Settles when the commands that run have ended.
   */
  async drain(): Promise<void> {
    const { slots } = this.#commandDeps;
    slots.close(new AppError('unavailable', 'the host is shutting down; try again'));
    await Promise.allSettled([...this.#disks.values()].map((disk) => disk.release()));
    await slots.idle;
  }

  /** Ends what still runs and gives every disk up. */
  async close(): Promise<void> {
    const reason = new AppError('outcome_unknown', 'the host shut down and ended the command');
    this.endAll(reason);
    await this.giveUpDisks(reason);
    await Promise.all([...this.#commands.values()].map((command) => command.cleared));
  }
}
