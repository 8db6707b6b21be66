import { runInBackground } from '../../shared/background.ts';
import { AppError } from '../../shared/errors.ts';
import { LIMITS } from '../../shared/limits.ts';
import type { DiskActor } from '../disks/disk-actor.ts';
import type { DiskRegistry } from '../disks/disk-registry.ts';
import type { CommandActor } from './command-actor.ts';
import { ExecActor, type ExecReport, type ExecSpec } from './exec-actor.ts';
import { GrepActor, type GrepActorDeps, type GrepReport, type GrepSpec } from './grep-actor.ts';

/**
 * Everything that runs in a container of this host or waits for its turn, execs and searches alike,
 * by id. The only place where these actors are created and forgotten.
 */
export class ExecRegistry {
  readonly #disks: DiskRegistry;
  readonly #deps: GrepActorDeps;
  readonly #commands = new Map<string, CommandActor>();
  /**
   * Ids of commands that were cancelled before they arrived: a cancellation may overtake its job.
   */
  readonly #cancelledEarly = new Set<string>();

  constructor(disks: DiskRegistry, deps: GrepActorDeps) {
    this.#disks = disks;
    this.#deps = deps;
  }

  get running(): number {
    return this.#deps.turns.used;
  }

  get waiting(): number {
    return this.#deps.turns.waiting;
  }

  /** Runs a command to its end; see {@link ExecActor.run}. */
  async runExec(spec: ExecSpec, onBegun: () => void): Promise<ExecReport> {
    const disks = this.#disksOf(spec.accountId, spec.mounts);
    return this.#run(spec.id, new ExecActor(this.#deps, spec, disks), onBegun);
  }

  /** Searches a disk; see {@link GrepActor.run}. */
  async runGrep(spec: GrepSpec, onBegun: () => void): Promise<GrepReport> {
    const disks = this.#disksOf(spec.accountId, [spec]);
    return this.#run(spec.id, new GrepActor(this.#deps, spec, disks), onBegun);
  }

  /** Ends a command, or keeps it from starting when it arrives; it may have ended by itself. */
  cancel(id: string): void {
    const command = this.#commands.get(id);
    if (command !== undefined) return command.end(new AppError('cancelled', 'the caller hung up'));
    this.#cancelledEarly.add(id);
    setTimeout(() => this.#cancelledEarly.delete(id), LIMITS.hostJobTimeoutMs).unref();
  }

  /** Ends every command, begun or not, with the same reason. */
  endAll(reason: AppError): void {
    for (const command of this.#commands.values()) command.end(reason);
  }

  /** Ends every command that can fill the storage. */
  endWriters(reason: AppError): void {
    for (const command of this.#commands.values()) if (command.writesToDisks) command.end(reason);
  }

  /** Refuses commands that have not begun; running ones continue. */
  refuseNew(reason: AppError): void {
    this.#deps.turns.close(reason);
  }

  /** Settles when no command runs. */
  get idle(): Promise<void> {
    return this.#deps.turns.idle;
  }

  /** Settles when nothing of the commands is left on the host. */
  async cleared(): Promise<void> {
    await Promise.all([...this.#commands.values()].map((command) => command.cleared));
  }

  #disksOf(accountId: string, of: readonly { diskId: string }[]): ReadonlyMap<string, DiskActor> {
    const diskIds = new Set(of.map(({ diskId }) => diskId));
    return new Map([...diskIds].map((diskId) => [diskId, this.#disks.get({ accountId, diskId })]));
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
}
