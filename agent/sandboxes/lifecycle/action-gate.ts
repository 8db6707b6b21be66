import { AppError } from '../../../shared/errors.ts';
import {
  explainRefusal,
  type SandboxAction,
  type SandboxState,
  type Verdict,
  verdictOn,
} from '../../../shared/sandbox-lifecycle.ts';
import type { Mailbox } from '../../system/queues/mailbox.ts';
import type { SandboxContext } from './sandbox-context.ts';

/** The answer for a sandbox that its host has released, until the new host has published it. */
export const isMoving = (): AppError =>
  new AppError('unavailable', 'the sandbox is moving to another host; try again');

/** Judges actions on a sandbox, and delays them while its machine or disk is being copied. */
export class ActionGate {
  readonly #mailbox: Mailbox;
  readonly #context: Pick<SandboxContext, 'sandbox' | 'uses' | 'copies'>;

  constructor(mailbox: Mailbox, context: Pick<SandboxContext, 'sandbox' | 'uses' | 'copies'>) {
    this.#mailbox = mailbox;
    this.#context = context;
  }

  /** The verdict on an action in the present state. @throws AppError when the action is refused */
  judge(action: SandboxAction): Verdict {
    this.refuseIfDeleted();
    const { state } = this.#context.sandbox.row;
    const verdict = verdictOn(state, action);
    if (verdict.kind !== 'refuse') return verdict;
    throw new AppError(verdict.code, explainRefusal(state, action));
  }

  /**
   * @throws AppError `not_found` when the sandbox's deletion has begun, `unavailable` when it moves
   */
  refuseIfDeleted(): void {
    if (this.#context.sandbox.hasMoved) throw isMoving();
    if (!this.#context.sandbox.row.isDeleting) return;
    throw new AppError('not_found', 'there is no such sandbox');
  }

  /** Sends a message that is handled only while neither machine nor disk is being copied. */
  async send<T>(handle: () => Promise<T>): Promise<T> {
    const { copies } = this.#context;
    for (;;) {
      await copies.copying;
      const handled = await this.#mailbox.send(async () =>
        copies.copying === undefined ? { result: await this.#run(handle) } : undefined,
      );
      if (handled !== undefined) return handled.result;
    }
  }

  async #run<T>(handle: () => Promise<T>): Promise<T> {
    if (this.#context.sandbox.hasMoved) throw isMoving();
    return handle();
  }

  /**
   * Judges an action and begins it, unless it is a no-op; `unchanged` is called then.
   * @throws AppError the verdict’s code
   */
  async act(
    action: SandboxAction,
    begin: (to: SandboxState | 'deleted') => Promise<void>,
    unchanged: () => void | Promise<void> = () => undefined,
  ): Promise<void> {
    const { sandbox, uses } = this.#context;
    await this.send(async () => {
      const verdict = this.judge(action);
      uses.action();
      if (verdict.kind === 'begin') await begin(verdict.to);
      else await unchanged();
    });
    await sandbox.publish();
  }
}
