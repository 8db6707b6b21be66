import { runInBackground } from '../../../shared/background.ts';
import { toError } from '../../../shared/errors.ts';
import type { Logger } from '../../../shared/log.ts';
import type { SandboxState } from '../../../shared/sandbox-lifecycle.ts';
import type { HookResult } from '../../../shared/schemas/sandbox-record.ts';
import type { Mailbox } from '../../system/queues/mailbox.ts';
import type { Machine, MachineEnd } from '../../machines/driver.ts';
import { MachineRun } from './machine-run.ts';
import type { StartClock } from './start-clock.ts';

/** An event of a machine that its sandbox's actor has to handle. */
export type MachineEvent =
  | {
      readonly kind: 'started';
      readonly machine: Machine;
      readonly hook: HookResult | undefined;
    }
  | { readonly kind: 'startFailed'; readonly error: Error }
  /** The requests are over for which a pause has waited, or the wait for them is. */
  | { readonly kind: 'drained' }
  | { readonly kind: 'paused' }
  | { readonly kind: 'pauseFailed'; readonly error: Error }
  | { readonly kind: 'ended'; readonly end: MachineEnd }
  /** The deadline of a transition has passed. */
  | { readonly kind: 'overdue'; readonly state: SandboxState };

const REPORT_RETRY_MS = 1_000;

interface CurrentRunDeps {
  readonly sandboxId: string;
  readonly mailbox: Mailbox;
  /** Handles an event of the current run; called within a message of the mailbox. */
  readonly handle: (event: MachineEvent) => Promise<void>;
  readonly log: Logger;
}

/**
 * The run of a sandbox whose machine is starting, running or ending. Events of an earlier
 * run are dropped, and so are all events after {@link close}.
 */
export class CurrentRun {
  /** Resolves when no pause is under way; never rejects. */
  pausing: Promise<unknown> = Promise.resolve();
  readonly #deps: CurrentRunDeps;
  #run: MachineRun | undefined;
  #isClosed = false;

  constructor(deps: CurrentRunDeps) {
    this.#deps = deps;
  }

  get run(): MachineRun | undefined {
    return this.#run;
  }

  /** The running machine, if there is one. */
  get machine(): Machine | undefined {
    return this.#run?.machine;
  }

  /** Begins a run, which replaces the present one. */
  begin(clock?: StartClock): MachineRun {
    this.#run = new MachineRun(clock);
    return this.#run;
  }

  /** Ends the run: no machine is left. */
  end(): void {
    this.#run = undefined;
  }

  /**
   * Ends the run but leaves its machine running; resolves when this agent no longer controls
   * it.
   */
  async leave(reason: string): Promise<void> {
    const run = this.#run;
    this.#run = undefined;
    await run?.leave(reason);
  }

  /** Drops every event from now on. */
  close(): void {
    this.#isClosed = true;
  }

  /** Reports the end of a running machine when it comes. */
  watchEnd(run: MachineRun, machine: Machine): void {
    run.machine = machine;
    runInBackground('sandbox.watchEnd', async () => {
      this.report(run, { kind: 'ended', end: await machine.ended });
    });
  }

  /** Kills a machine that did not continue in time after it was copied. */
  killOverdue(why: string): void {
    const { sandboxId, log } = this.#deps;
    log.error({ sandboxId }, 'sandbox:copyOverdue');
    runInBackground('sandbox.killOverdue', () => this.machine?.kill(why));
  }

  /**
   * Sends an event to the mailbox; an event whose handling fails is reported again every second.
   */
  report(run: MachineRun, event: MachineEvent): void {
    const { mailbox, handle, sandboxId, log } = this.#deps;
    const message = async (): Promise<void> => {
      if (this.#run === run && !this.#isClosed) await handle(event);
    };
    mailbox.send(message).catch((error: unknown) => {
      log.error({ sandboxId, event: event.kind, err: toError(error) }, 'sandbox:eventFailed');
      // Usually the journal could not be written, which must not lose the event.
      setTimeout(() => this.report(run, event), REPORT_RETRY_MS).unref();
    });
  }
}
