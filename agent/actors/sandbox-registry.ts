import { randomUUID } from 'node:crypto';
import { AppError, toError } from '../../shared/errors.ts';
import { LIMITS } from '../../shared/limits.ts';
import type { SandboxConfig } from '../../shared/schemas/sandbox-record.ts';
import { paths } from '../config.ts';
import type { SandboxRow } from '../journal/sandbox-journal.ts';
import { SandboxExecs } from '../sandboxes/sandbox-execs.ts';
import { step } from '../step.ts';
import { SandboxActor, type SandboxActorDeps } from './sandbox-actor.ts';

/** A sandbox to be made. */
export interface NewSandbox {
  readonly id: string;
  readonly accountId: string;
  readonly config: SandboxConfig;
  readonly environment: Readonly<Record<string, string>>;
}

export interface SandboxRegistryDeps extends SandboxActorDeps {
  readonly dataDir: string;
  readonly uidBase: number;
}

export interface SandboxRef {
  readonly accountId: string;
  readonly sandboxId: string;
}

/** Ids that were taken back are remembered as long as a job of theirs may still come. */
const DISCARDED_MAX = 10_000;

/** The sandboxes of this host by id. The only place where their actors are made and forgotten. */
export class SandboxRegistry {
  readonly #deps: SandboxRegistryDeps;
  readonly #actors = new Map<string, SandboxActor>();
  readonly #uids = new Map<string, number>();
  readonly #discarded = new Set<string>();

  constructor(deps: SandboxRegistryDeps) {
    this.#deps = deps;
  }

  /**
   * Takes up what the journal tells, and removes what it does not own. Resolves when each sandbox is
   * taken over, on its way, or ended.
   */
  async recover(): Promise<void> {
    const { journal, driver, log } = this.#deps;
    const rows = await journal.list();
    for (const row of rows) this.#add(row);
    for (const id of await driver.list()) {
      if (this.#actors.has(id)) continue;
      log.warn({ sandboxId: id }, 'reclaim:sandbox');
      await driver.reclaim(id);
      await step('reclaim unowned disk', () => driver.remove(id));
    }
    await Promise.all([...this.#actors.values()].map((actor) => this.#recover(actor)));
  }

  /** @throws AppError `no_capacity`, `host_full`, `cancelled` when it was taken back meanwhile */
  async create({ id, accountId, config, environment }: NewSandbox): Promise<SandboxActor> {
    const present = this.#actors.get(id);
    if (present !== undefined) throw new AppError('outcome_unknown', 'it was begun before');
    if (this.#discarded.has(id)) throw new AppError('cancelled', 'the sandbox was taken back');
    const now = new Date().toISOString();
    const actor = this.#add({
      id,
      accountId,
      config,
      environment,
      uid: this.#freeUid(),
      slot: undefined,
      bootId: randomUUID(),
      state: 'pending_start',
      revision: 1,
      createdAt: now,
      lastActiveAt: now,
      runningAt: undefined,
      finishedAt: undefined,
      exitReason: undefined,
      exitMessage: undefined,
      isDeleting: false,
    });
    try {
      await actor.create();
    } catch (error) {
      this.#forget(id);
      throw error;
    }
    return actor;
  }

  /** @throws AppError `not_found` */
  find({ accountId, sandboxId }: SandboxRef): SandboxActor {
    const actor = this.#actors.get(sandboxId);
    if (actor === undefined || actor.isDeleted || actor.accountId !== accountId) {
      throw new AppError('not_found', 'there is no such sandbox');
    }
    return actor;
  }

  /** @throws AppError `not_found`, `sandbox_not_stopped` */
  async delete(ref: SandboxRef): Promise<void> {
    await this.find(ref).delete();
    this.#forget(ref.sandboxId);
  }

  /** Nothing of it remains, whether it is here or still to come. */
  async discard({ accountId, sandboxId }: SandboxRef): Promise<void> {
    if (this.#discarded.size >= DISCARDED_MAX) this.#discarded.clear();
    this.#discarded.add(sandboxId);
    const actor = this.#actors.get(sandboxId);
    if (actor === undefined || actor.accountId !== accountId) return;
    await actor.discard();
    this.#forget(sandboxId);
  }

  /** The directory was emptied. */
  async republish(): Promise<void> {
    await Promise.all([...this.#actors.values()].map((actor) => actor.republish()));
  }

  /** Ends every machine: the host goes down. */
  async stopAll(): Promise<void> {
    await Promise.all([...this.#actors.values()].map((actor) => this.#stop(actor)));
  }

  /** Lets go of every sandbox; their machines run on. */
  async detach(): Promise<void> {
    await Promise.all([...this.#actors.values()].map((actor) => actor.detach()));
  }

  async #stop(actor: SandboxActor): Promise<void> {
    try {
      await actor.stop();
      await actor.settled(LIMITS.sandboxStopAllMs);
    } catch (error) {
      this.#deps.log.warn({ sandboxId: actor.id, err: toError(error) }, 'sandbox:notStopped');
    }
  }

  async #recover(actor: SandboxActor): Promise<void> {
    const { log } = this.#deps;
    try {
      await actor.recover();
    } catch (error) {
      log.error({ sandboxId: actor.id, err: toError(error) }, 'sandbox:notRecovered');
      await actor.giveUp(toError(error));
    }
    if (actor.isDeleted) this.#forget(actor.id);
  }

  #add(row: SandboxRow): SandboxActor {
    const { journal, dataDir, log } = this.#deps;
    const { id, uid, config } = row;
    const directory = paths.sandboxOutput(dataDir, id);
    const execs = new SandboxExecs(id, config.maxConcurrentExecs, { directory, journal, log });
    const actor = new SandboxActor(this.#deps, row, execs);
    this.#actors.set(id, actor);
    this.#uids.set(id, uid);
    return actor;
  }

  #forget(id: string): void {
    this.#actors.delete(id);
    this.#uids.delete(id);
  }

  #freeUid(): number {
    const used = new Set(this.#uids.values());
    let uid = this.#deps.uidBase;
    while (used.has(uid)) uid += 1;
    return uid;
  }
}
