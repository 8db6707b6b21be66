import { runInBackground } from '../../shared/background.ts';
import { toError } from '../../shared/errors.ts';
import type { Logger } from '../../shared/log.ts';
import type { Mailbox } from '../queues/mailbox.ts';
import type { Machine, MachineEnd } from './machine-driver.ts';
import { MachineSession } from './machine-session.ts';
import type { StartClock } from './start-clock.ts';

/** What happens to a machine outside the mailbox of its sandbox's actor. */
export type MachineEvent =
  | { readonly kind: 'up'; readonly machine: Machine }
  | { readonly kind: 'notUp'; readonly error: Error }
  | { readonly kind: 'paused' }
  | { readonly kind: 'notPaused'; readonly error: Error }
  | { readonly kind: 'ended'; readonly end: MachineEnd }
  | { readonly kind: 'overdue' };

const REPORT_RETRY_MS = 1_000;

interface CurrentSessionDeps {
  readonly sandboxId: string;
  readonly mailbox: Mailbox;
  /** Handles an event of the current session, as a message of the mailbox. */
  readonly handle: (event: MachineEvent) => Promise<void>;
  readonly log: Logger;
}

/**
 * The session of a sandbox whose machine is up, or on its way up or down. Events of a former session
 * are ignored, and all of them once it is closed.
 */
export class CurrentSession {
  /** Settles when no pause is being made; never rejects. */
  pausing: Promise<unknown> = Promise.resolve();
  readonly #deps: CurrentSessionDeps;
  #session: MachineSession | undefined;
  #isClosed = false;

  constructor(deps: CurrentSessionDeps) {
    this.#deps = deps;
  }

  get session(): MachineSession | undefined {
    return this.#session;
  }

  /** The machine that is up. */
  get machine(): Machine | undefined {
    return this.#session?.machine;
  }

  begin(clock?: StartClock): MachineSession {
    this.#session = new MachineSession(clock);
    return this.#session;
  }

  /** The machine is at rest. */
  end(): void {
    this.#session = undefined;
  }

  /** As `end`, for a machine that runs on; resolves when this process is done with it. */
  async leave(reason: string): Promise<void> {
    const session = this.#session;
    this.#session = undefined;
    await session?.leave(reason);
  }

  /** No event is handled any more. */
  close(): void {
    this.#isClosed = true;
  }

  /** Reports the end of a machine that is up. */
  watchEnd(session: MachineSession, machine: Machine): void {
    session.machine = machine;
    runInBackground('sandbox.noticeEnd', async () => {
      this.report(session, { kind: 'ended', end: await machine.ended });
    });
  }

  /** Kills a machine that did not run on in time after it was copied. */
  killOverdue(why: string): void {
    const { sandboxId, log } = this.#deps;
    log.error({ sandboxId }, 'sandbox:copyOverdue');
    runInBackground('sandbox.killOverdue', () => this.machine?.kill(why));
  }

  report(session: MachineSession, event: MachineEvent): void {
    const { mailbox, handle, sandboxId, log } = this.#deps;
    const message = async (): Promise<void> => {
      if (this.#session === session && !this.#isClosed) await handle(event);
    };
    mailbox.send(message).catch((error: unknown) => {
      log.error({ sandboxId, event: event.kind, err: toError(error) }, 'sandbox:eventFailed');
      // As a rule the journal could not be written: the event is reported again until it is.
      setTimeout(() => this.report(session, event), REPORT_RETRY_MS).unref();
    });
  }
}
