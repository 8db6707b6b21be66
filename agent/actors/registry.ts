import { AppError } from '../../shared/errors.ts';
import { LIMITS } from '../../shared/limits.ts';
import { openDiskFile } from '../disks/disk-file.ts';
import { DiskActor, type DiskActorDeps, type DiskRef } from './disk-actor.ts';
import { ExecActor, type ExecActorDeps, type ExecReport, type ExecSpec } from './exec-actor.ts';

/** All actors of this host by id. The only place where actors are made and forgotten. */
export class ActorRegistry {
  readonly #diskDeps: DiskActorDeps;
  readonly #execDeps: ExecActorDeps;
  readonly #disks = new Map<string, DiskActor>();
  readonly #execs = new Map<string, ExecActor>();
  /** Cancelled before they were here: the word may overtake the job. */
  readonly #cancelledEarly = new Set<string>();

  constructor(diskDeps: DiskActorDeps, execDeps: ExecActorDeps) {
    this.#diskDeps = diskDeps;
    this.#execDeps = execDeps;
  }

  get execsRunning(): number {
    return this.#execDeps.slots.used;
  }

  get execsWaiting(): number {
    return this.#execDeps.slots.waiting;
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
    const { accountId, mounts } = spec;
    if (this.#execs.has(spec.id)) {
      throw new AppError('outcome_unknown', 'the command was begun before');
    }
    const diskIds = new Set(mounts.map(({ diskId }) => diskId));
    const disks = new Map([...diskIds].map((diskId) => [diskId, this.disk({ accountId, diskId })]));
    const actor = new ExecActor(this.#execDeps, spec, disks);
    this.#execs.set(spec.id, actor);
    if (this.#cancelledEarly.delete(spec.id)) this.cancelExec(spec.id);
    try {
      return await actor.run(onBegun);
    } finally {
      void actor.cleared.finally(() => {
        this.#execs.delete(spec.id);
      });
    }
  }

  /** Ends an exec, or keeps it from starting when it comes; it may have ended by itself. */
  cancelExec(id: string): void {
    const exec = this.#execs.get(id);
    if (exec !== undefined) return exec.end(new AppError('cancelled', 'the caller hung up'));
    this.#cancelledEarly.add(id);
    setTimeout(() => this.#cancelledEarly.delete(id), LIMITS.hostJobTimeoutMs).unref();
  }

  /** @throws AppError `not_found`, or `bad_request` when this is no regular file */
  async statFile(ref: DiskRef, key: string, clientId: string): Promise<{ sizeBytes: number }> {
    const claim = await this.disk(ref).claim(clientId, () => undefined);
    try {
      await using file = await openDiskFile(claim.path, key);
      return { sizeBytes: Number(file.stats.size) };
    } finally {
      claim.release();
    }
  }

  async deleteDisk(ref: DiskRef): Promise<void> {
    await this.disk(ref).delete();
    this.#disks.delete(ref.diskId);
  }

  /** Ends every command, begun or not, with the same reason. */
  endExecs(reason: AppError): void {
    for (const exec of this.#execs.values()) exec.end(reason);
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
    const { slots } = this.#execDeps;
    slots.close(new AppError('unavailable', 'the host is shutting down; try again'));
    await Promise.allSettled([...this.#disks.values()].map((disk) => disk.release()));
    await slots.idle;
  }

  /** Ends what still runs and gives every disk up. */
  async close(): Promise<void> {
    const reason = new AppError('outcome_unknown', 'the host shut down and ended the command');
    this.endExecs(reason);
    await this.giveUpDisks(reason);
    await Promise.all([...this.#execs.values()].map((exec) => exec.cleared));
  }
}
