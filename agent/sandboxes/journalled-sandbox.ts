import { runInBackground } from '../../shared/background.ts';
import { toError } from '../../shared/errors.ts';
import { LIMITS } from '../../shared/limits.ts';
import type { Logger } from '../../shared/log.ts';
import {
  assertTransition,
  isTransitional,
  type SandboxState,
} from '../../shared/sandbox-lifecycle.ts';
import type { SandboxRecord } from '../../shared/schemas/sandbox-record.ts';
import { settledWithin } from '../../shared/settled-within.ts';
import type { SandboxJournal, SandboxRow } from '../journal/sandbox-journal.ts';
import { failpoint } from '../system/failpoint.ts';
import type { SandboxPublisher } from './publisher.ts';
import { toRecord } from './sandbox-row.ts';
import { resetExpiry, TimeLimits } from './time-limits.ts';

export interface JournalledSandboxDeps {
  readonly hostId: string;
  readonly platform: SandboxRecord['platform'];
  readonly journal: SandboxJournal;
  readonly publisher: SandboxPublisher;
  readonly log: Logger;
}

/** What its actor does when something happens. */
interface Handlers {
  /** It has entered a state, or is taken over in it. */
  readonly entered: () => void;
  /** It has run, or been idle, for as long as it may. */
  readonly limitReached: () => void;
  /** Writes something between other messages. */
  readonly send: (write: () => Promise<void>) => Promise<void>;
}

export type SandboxChange = Partial<
  Omit<SandboxRow, 'id' | 'accountId' | 'environment' | 'uid' | 'state' | 'revision' | 'createdAt'>
>;

/** Undefined leaves a limit as it is. */
export interface NewLimits {
  readonly timeoutSeconds: number | undefined;
  readonly idleTtlSeconds: number | undefined;
}

/** Uses are written down together: a sandbox may see many of them. */
const USE_WRITTEN_AFTER_MS = 5_000;

const laterOf = (a: number | undefined, b: number | undefined): number | undefined =>
  a === undefined || b === undefined ? (a ?? b) : Math.max(a, b);

/**
 * What a sandbox is: its row in the journal, which counts, and what follows from each change of it:
 * those who wait for it, the directory's copy, its time limits. Only its actor changes it.
 */
export class JournalledSandbox {
  readonly #deps: JournalledSandboxDeps;
  readonly #handlers: Handlers;
  readonly #limits: TimeLimits;
  readonly #changeWaiters = new Set<() => void>();
  #row: SandboxRow;
  /** How many things use it, so that it is not idle. */
  #holds = 0;
  #useTimer: NodeJS.Timeout | undefined;
  /** It is in the journal, and is still this agent's. */
  #isOurs = false;
  #isDetached = false;

  constructor(deps: JournalledSandboxDeps, row: SandboxRow, handlers: Handlers) {
    this.#deps = deps;
    this.#row = row;
    this.#handlers = handlers;
    this.#limits = new TimeLimits(handlers.limitReached);
  }

  get row(): SandboxRow {
    return this.#row;
  }

  /** As it is published. */
  get record(): SandboxRecord {
    return toRecord(this.#row, this.#deps);
  }

  get isDetached(): boolean {
    return this.#isDetached;
  }

  get isLimitReached(): boolean {
    return this.#limits.isReached;
  }

  async insert(state: SandboxState, change: SandboxChange): Promise<void> {
    const row = { ...this.#row, ...change, state };
    await failpoint('journal create', () => this.#deps.journal.insert(row));
    this.#row = row;
    this.#isOurs = true;
    this.noticeEntered('created');
  }

  /** A former agent has journalled it. */
  takeUp(): void {
    this.#isOurs = true;
  }

  /** The one gate through which its state changes: journal, memory, those who wait, directory. */
  async enter(to: SandboxState, change: SandboxChange, cause: string): Promise<void> {
    assertTransition(this.#row.state, to);
    await this.#write(`journal ${to}`, { exitMessage: undefined, ...change, state: to });
    this.noticeEntered(cause);
    runInBackground('sandbox.publish', () => this.publish());
  }

  noticeEntered(cause: string): void {
    const { id, accountId, state } = this.#row;
    this.#deps.log.info({ sandboxId: id, accountId, state, cause }, 'sandbox:transitioned');
    this.#handlers.entered();
    for (const resolve of this.#changeWaiters) resolve();
  }

  /** Journals that it is to be deleted, which cannot be taken back. */
  async beginDelete(): Promise<void> {
    clearTimeout(this.#useTimer);
    await this.#write('journal delete', { isDeleting: true });
  }

  /** Removes it from the directory; repeatable. @throws AppError when the agent ends */
  async withdraw(): Promise<void> {
    await this.#deps.publisher.remove(this.record);
  }

  async publish(): Promise<void> {
    // What is on its way out is not to be seen again.
    if (!this.#isOurs || this.#isDetached || this.#row.isDeleting) return;
    await this.#deps.publisher.publish(this.record);
  }

  /** Resolves when the directory shows the sandbox that was just created. */
  async publishNew(): Promise<void> {
    if (this.#row.isDeleting) return; // Its creator gave up, and it was discarded.
    await this.#deps.publisher.publishNew(this.record);
  }

  /** Resolves when it is in no transition, or after that time. */
  async settled(waitMs: number): Promise<void> {
    const until = Date.now() + waitMs;
    while (isTransitional(this.#row.state) && !this.#isDetached && Date.now() < until) {
      const { promise, resolve } = Promise.withResolvers<void>();
      this.#changeWaiters.add(resolve);
      await settledWithin(promise, until - Date.now());
      this.#changeWaiters.delete(resolve);
    }
  }

  /** It was used just now. */
  touch(): void {
    this.#row = { ...this.#row, ...this.#used() };
    this.#watchLimits();
    // With a limit for being idle, an agent to come must know exactly since when.
    const isLimited = this.#row.state === 'running' && this.#row.config.idleTtlSeconds > 0;
    if (isLimited) clearTimeout(this.#useTimer);
    else if (this.#useTimer !== undefined) return;
    this.#useTimer = setTimeout(() => this.#saveUse(), isLimited ? 0 : USE_WRITTEN_AFTER_MS);
  }

  /** It is not idle until the function that this returns is called. */
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

  /** What used it when the former agent ended uses it no more, or has said so again. */
  countIdleOn(): void {
    const idleSince = this.#holds > 0 ? undefined : (this.#row.idleSince ?? Date.now());
    this.#row = { ...this.#row, idleSince };
    this.#watchLimits();
  }

  /** Sets how long the session may go on, and sessions to come. @throws AppError `bad_request` */
  async setLimits({ timeoutSeconds, idleTtlSeconds }: NewLimits): Promise<void> {
    const { config, expiresAt } = this.#row;
    const limits = {
      maxTtlSeconds: timeoutSeconds ?? config.maxTtlSeconds,
      idleTtlSeconds: idleTtlSeconds ?? config.idleTtlSeconds,
    };
    await this.#write('journal limits', {
      config: { ...config, ...limits },
      expiresAt: timeoutSeconds === undefined ? expiresAt : this.#resetExpiry(timeoutSeconds),
      ...this.#used(),
    });
  }

  /** What was to be done at a limit has failed: it is told again after a while. */
  postponeLimits(): void {
    if (this.#limits.isReached) this.#limits.postpone(LIMITS.sandboxPauseRetryMs);
  }

  /** Nothing is journalled or published from here on. */
  detach(): void {
    this.#isDetached = true;
    for (const resolve of this.#changeWaiters) resolve();
    clearTimeout(this.#useTimer);
    this.#watchLimits();
  }

  /** How a use changes its row. */
  #used(): SandboxChange {
    const now = Date.now();
    const idleSince = this.#holds > 0 ? undefined : now;
    return { lastActiveAt: new Date(now).toISOString(), idleSince };
  }

  #saveUse(): void {
    this.#useTimer = undefined;
    const save = async (): Promise<void> => {
      if (!this.#isOurs || this.#isDetached || this.#row.isDeleting) return;
      await this.#write('journal use', {});
      runInBackground('sandbox.publish', () => this.publish());
    };
    this.#handlers.send(save).catch((error: unknown) => {
      this.#deps.log.warn(
        { sandboxId: this.#row.id, err: toError(error) },
        'sandbox:saveActivityFailed',
      );
    });
  }

  async #write(name: string, change: Partial<SandboxRow>): Promise<void> {
    const row = { ...this.#row, ...change, revision: this.#row.revision + 1 };
    await failpoint(name, () => this.#deps.journal.save(row));
    // What is journalled counts, but for uses meanwhile.
    const { lastActiveAt, idleSince } = this.#row;
    this.#row = {
      ...row,
      lastActiveAt: lastActiveAt > row.lastActiveAt ? lastActiveAt : row.lastActiveAt,
      idleSince: this.#holds > 0 ? undefined : laterOf(idleSince, row.idleSince),
    };
    this.#watchLimits();
  }

  /** A session that there is may go on for so long; without one, only the next one is meant. */
  #resetExpiry(timeoutSeconds: number): number | undefined {
    const { runningAt, expiresAt } = this.#row;
    if (expiresAt === undefined || runningAt === undefined) return undefined;
    return resetExpiry(Date.parse(runningAt), timeoutSeconds, Date.now());
  }

  #watchLimits(): void {
    const { state, isDeleting, expiresAt, idleSince, config } = this.#row;
    const isWatched = state === 'running' && !this.#isDetached && !isDeleting;
    const { idleTtlSeconds } = config;
    this.#limits.watch(isWatched ? { expiresAt, idleSince, idleTtlSeconds } : undefined);
  }
}
