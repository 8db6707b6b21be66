import { runInBackground } from '../../../shared/background.ts';
import { toError } from '../../../shared/errors.ts';
import { SANDBOX_LIMITS } from '../limits.ts';
import type { Logger } from '../../../shared/log.ts';
import {
  assertTransition,
  isServing,
  isTransitional,
  type SandboxState,
} from '../../../shared/sandbox-lifecycle.ts';
import type { HookResult, SandboxRecord } from '../../../shared/schemas/sandbox-record.ts';
import { settledWithin } from '../../../shared/settled-within.ts';
import type { SandboxJournal, SandboxRow } from '../../system/journal/sandbox-journal.ts';
import { failpoint } from '../../system/failpoint.ts';
import { monotonicNow } from '../../system/monotonic-clock.ts';
import type { SandboxPublisher } from './publisher.ts';
import type { StoredPolicy } from '../holds/sandbox-policies.ts';
import { toRecord } from './sandbox-row.ts';
import { resetExpiry, TimeLimits } from './time-limits.ts';

/** The records by which another host can continue a sandbox of this one (moving/). */
interface Handover {
  readonly storage: {
    /** Makes the directory of a machine that is about to be made. Idempotent. */
    claim(vmId: string): Promise<void>;
    /** Leaves a machine at rest to other hosts. @returns false when it is in use */
    release(vmId: string): Promise<boolean>;
  };
  /** Writes a sandbox's record durably. @throws Error when it cannot */
  write(row: SandboxRow): Promise<void>;
  /** Like `write`, but a failure is logged only: the journal is the truth. */
  save(row: SandboxRow): Promise<void>;
}

export interface JournalledSandboxDeps {
  readonly hostId: string;
  readonly platform: SandboxRecord['platform'];
  readonly journal: SandboxJournal;
  readonly publisher: SandboxPublisher;
  /** Undefined: the sandboxes stay on this host. */
  readonly handover?: Handover | undefined;
  readonly log: Logger;
}

/** The actor's part in what happens to the row. */
interface Callbacks {
  /** The sandbox has entered a state, or was recovered in it. */
  readonly entered: () => void;
  /** The sandbox has run, or been idle, for as long as it may. */
  readonly limitReached: () => void;
  /** Runs a write as a message of the actor's mailbox. */
  readonly send: (write: () => Promise<void>) => Promise<void>;
}

export type SandboxChange = Partial<
  Omit<SandboxRow, 'id' | 'accountId' | 'environment' | 'state' | 'revision' | 'createdAt'>
>;

/** Undefined leaves a limit as it is. */
export interface NewLimits {
  readonly timeoutSeconds: number | undefined;
  readonly idleTtlSeconds: number | undefined;
}

/** Activity is journalled at most this often, since a sandbox may be used many times a second. */
const ACTIVITY_WRITTEN_EVERY_MS = 5_000;

/**
 * A sandbox's row in the journal, which is the truth about it, and everything that follows from a
 * change to it: callers that wait for a state, the directory's copy, time limits. Only the
 * sandbox's actor changes it.
 */
export class JournalledSandbox {
  readonly #deps: JournalledSandboxDeps;
  readonly #callbacks: Callbacks;
  readonly #limits: TimeLimits;
  readonly #changeWaiters = new Set<() => void>();
  #row: SandboxRow;
  /** How many users keep the sandbox from being idle. */
  #holds = 0;
  #activityTimer: NodeJS.Timeout | undefined;
  /** Whether it was used since the row was journalled. */
  #isUseUnsaved = false;
  #isJournalled = false;
  #hasMoved = false;
  readonly #detached = new AbortController();

  constructor(deps: JournalledSandboxDeps, row: SandboxRow, callbacks: Callbacks) {
    this.#deps = deps;
    this.#row = row;
    this.#callbacks = callbacks;
    this.#limits = new TimeLimits(callbacks.limitReached);
  }

  get row(): SandboxRow {
    return this.#row;
  }

  /** The sandbox as it is published. */
  get record(): SandboxRecord {
    return toRecord(this.#row, this.#deps);
  }

  get isDetached(): boolean {
    return this.#detached.signal.aborted;
  }

  /** Aborted by {@link detach}. */
  get detached(): AbortSignal {
    return this.#detached.signal;
  }

  get isLimitReached(): boolean {
    return this.#limits.isReached;
  }

  /** Journals a new sandbox. */
  async insert(
    state: SandboxState,
    change: SandboxChange & Partial<Pick<SandboxRow, 'environment'>>,
  ): Promise<void> {
    const row = { ...this.#row, ...change, state };
    await failpoint('journal create', () => this.#deps.journal.insert(row));
    await this.#deps.handover?.save(row);
    this.#row = row;
    this.#isJournalled = true;
    this.announceState('created');
  }

  get isJournalled(): boolean {
    return this.#isJournalled;
  }

  /** Tells that a former agent has journalled the sandbox. */
  markJournalled(): void {
    this.#isJournalled = true;
  }

  /** The only way to another state: journal first, then memory, waiting callers and directory. */
  async enter(to: SandboxState, change: SandboxChange, cause: string): Promise<void> {
    assertTransition(this.#row.state, to);
    await this.#write(`journal ${to}`, { exitMessage: undefined, ...change, state: to });
    this.announceState(cause);
    runInBackground('sandbox.publish', () => this.publish());
  }

  /**
   * Logs the present state, lets its deadline begin, and wakes the callers that wait for a change.
   */
  announceState(cause: string): void {
    const { id, accountId, state } = this.#row;
    this.#deps.log.info({ sandboxId: id, accountId, state, cause }, 'sandbox:transitioned');
    this.#callbacks.entered();
    for (const resolve of this.#changeWaiters) resolve();
  }

  /** Journals that the sandbox is being deleted, which cannot be undone. */
  async beginDelete(): Promise<void> {
    clearTimeout(this.#activityTimer);
    await this.#write('journal delete', { isDeleting: true });
  }

  /** Removes the sandbox from the directory; idempotent. @throws AppError when the agent ends */
  async withdraw(): Promise<void> {
    await this.#deps.publisher.remove(this.record);
  }

  /** Publishes the sandbox, unless it is being deleted or this agent has detached from it. */
  async publish(): Promise<void> {
    if (!this.#isJournalled || this.isDetached || this.#row.isDeleting) return;
    await this.#deps.publisher.publish(this.record);
  }

  /** Publishes a new sandbox; resolves when the directory shows it. */
  async publishNew(): Promise<void> {
    if (this.#row.isDeleting) return; // The sandbox was discarded meanwhile: its creator gave up.
    await this.#deps.publisher.publishNew(this.record);
  }

  /** The sandbox as it is now, once the directory shows it so, or after a second. */
  async publishedRecord(): Promise<SandboxRecord> {
    const { record } = this;
    await this.#deps.publisher.published(record.id);
    return record;
  }

  /** Resolves when the sandbox is in no transition, or after `waitMs`. */
  async settled(waitMs: number): Promise<void> {
    const until = performance.now() + waitMs;
    while (isTransitional(this.#row.state) && !this.isDetached && performance.now() < until) {
      const { promise, resolve } = Promise.withResolvers<void>();
      this.#changeWaiters.add(resolve);
      await settledWithin(promise, until - performance.now());
      this.#changeWaiters.delete(resolve);
    }
  }

  /** Records activity: the sandbox was used just now. */
  touch(): void {
    this.#row = { ...this.#row, ...this.#activity() };
    this.#isUseUnsaved = true;
    this.#watchLimits();
    // With an idle limit, the next agent must know exactly since when the sandbox is idle.
    const isLimited = this.#row.state === 'running' && this.#row.config.idleTtlSeconds > 0;
    if (isLimited) clearTimeout(this.#activityTimer);
    else if (this.#activityTimer !== undefined) return;
    const delayMs = isLimited ? 0 : ACTIVITY_WRITTEN_EVERY_MS;
    this.#activityTimer = setTimeout(() => this.#saveActivity(), delayMs);
  }

  /** Keeps the sandbox from being idle. @returns ends that; only the first call counts */
  hold(): () => void {
    this.#holds += 1;
    this.touch();
    let isHeld = true;
    return () => {
      if (!isHeld) return;
      isHeld = false;
      this.#holds -= 1;
      this.touch();
    };
  }

  /**
   * After a recovery: continues the time limits from the journalled values. Idle time counts only
   * if nothing holds the sandbox.
   */
  resumeLimits(): void {
    const now = monotonicNow();
    // Missing only in runs that began under agents which counted by the wall clock.
    const { runningSince = now, config } = this.#row;
    const { expiresAt = runningSince + config.maxTtlSeconds * 1000 } = this.#row;
    const idleSince = this.#holds > 0 ? undefined : (this.#row.idleSince ?? now);
    this.#row = { ...this.#row, runningSince, expiresAt, idleSince };
    this.#watchLimits();
  }

  /**
   * Sets the time limits of the present run and of later ones.
   * @throws AppError `bad_request`
   */
  async setLimits({ timeoutSeconds, idleTtlSeconds }: NewLimits): Promise<void> {
    const { config, expiresAt } = this.#row;
    const limits = {
      maxTtlSeconds: timeoutSeconds ?? config.maxTtlSeconds,
      idleTtlSeconds: idleTtlSeconds ?? config.idleTtlSeconds,
    };
    await this.#write('journal limits', {
      config: { ...config, ...limits },
      expiresAt: timeoutSeconds === undefined ? expiresAt : this.#resetExpiry(timeoutSeconds),
      ...this.#activity(),
    });
  }

  /** Sets the network policy, which counts already. */
  async setNetwork(policy: StoredPolicy): Promise<void> {
    await this.#write('journal network', { ...policy, ...this.#activity() });
  }

  /** Sets how far the hook of the copy has come. */
  async setHook(hook: HookResult): Promise<void> {
    await this.#write('journal hook', { hook });
    runInBackground('sandbox.publish', () => this.publish());
  }

  /** Sets the hook of copies that are made from now on; empty: none. */
  async setCopyHook(copyHook: string): Promise<void> {
    await this.#write('journal copy hook', { config: { ...this.#row.config, copyHook } });
  }

  /** After a failed pause at a time limit: reports the limit again after `sandboxPauseRetryMs`. */
  postponeLimits(): void {
    if (this.#limits.isReached) this.#limits.postpone(SANDBOX_LIMITS.sandboxPauseRetryMs);
  }

  /** Whether another host has it, or may have. */
  get hasMoved(): boolean {
    return this.#hasMoved;
  }

  /** Another host has it from now on: this one journals and publishes nothing more of it. */
  detachAsMoved(): void {
    this.#hasMoved = true;
    this.detach();
  }

  /** Journals and publishes nothing from now on. */
  detach(): void {
    this.#detached.abort();
    for (const resolve of this.#changeWaiters) resolve();
    clearTimeout(this.#activityTimer);
    this.#watchLimits();
  }

  /**
   * Journals the last use for the next agent, which continues the idle time from it. To be called
   * after {@link detach}, as a message of the mailbox like everything that writes the row.
   */
  async saveLastUse(): Promise<void> {
    const isKept = this.#isJournalled && !this.#hasMoved && !this.#row.isDeleting;
    if (isKept && this.#isUseUnsaved) await this.#write('journal last use', {});
  }

  /** The fields of the row that activity changes. */
  #activity(): SandboxChange {
    const idleSince = this.#holds > 0 ? undefined : monotonicNow();
    return { lastActiveAt: new Date().toISOString(), idleSince };
  }

  #saveActivity(): void {
    this.#activityTimer = undefined;
    const save = async (): Promise<void> => {
      if (!this.#isJournalled || this.isDetached || this.#row.isDeleting) return;
      await this.#write('journal use', {});
      runInBackground('sandbox.publish', () => this.publish());
    };
    this.#callbacks.send(save).catch((error: unknown) => {
      this.#deps.log.warn(
        { sandboxId: this.#row.id, err: toError(error) },
        'sandbox:saveActivityFailed',
      );
    });
  }

  async #write(name: string, change: Partial<SandboxRow>): Promise<void> {
    const before = this.#row;
    const row = { ...before, ...change, revision: before.revision + 1 };
    await failpoint(name, () => this.#deps.journal.save(row));
    await this.#deps.handover?.save(row);
    // The journalled row counts, except for activity while it was written.
    const isNewest = this.#row === before;
    if (isNewest) this.#isUseUnsaved = false;
    const { lastActiveAt, idleSince } = isNewest ? row : this.#row;
    this.#row = { ...row, lastActiveAt, idleSince: this.#holds > 0 ? undefined : idleSince };
    this.#watchLimits();
  }

  /**
   * When the present run will expire; undefined without one: only later runs change then.
   */
  #resetExpiry(timeoutSeconds: number): number | undefined {
    const { runningSince, expiresAt } = this.#row;
    if (expiresAt === undefined || runningSince === undefined) return undefined;
    return resetExpiry(runningSince, timeoutSeconds, monotonicNow());
  }

  #watchLimits(): void {
    const { state, isDeleting, expiresAt, idleSince, config } = this.#row;
    const isWatched = isServing(state) && !this.isDetached && !isDeleting;
    const { idleTtlSeconds } = config;
    this.#limits.watch(isWatched ? { expiresAt, idleSince, idleTtlSeconds } : undefined);
  }
}
