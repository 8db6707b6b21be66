import { AppError } from '../../../shared/errors.ts';
import { EDGE_LIMITS } from '../limits.ts';
import { isTransitional } from '../../../shared/sandbox-lifecycle.ts';
import type { SandboxActor } from '../../sandboxes/lifecycle/sandbox-actor.ts';
import { DoorError } from './door-error.ts';

/** How often a sandbox is brought up for the requests that wait for it. */
const TRIES_MAX = 2;

/** Brings sandboxes up for requests: once, however many requests wait. */
export class SandboxWaker {
  readonly #waking = new Map<string, Promise<void>>();
  readonly #fresh = new Set<string>();

  /**
   * Whether a request has brought the sandbox up just now, so that its services may still start.
   */
  isFresh(sandboxId: string): boolean {
    return this.#fresh.has(sandboxId);
  }

  /**
   * Resolves when the sandbox runs: resumed when it was paused, or when its pause waited for
   * requests; started when it was at rest.
   * @throws DoorError
   */
  async wake(actor: SandboxActor): Promise<void> {
    if (actor.row.state === 'running') return;
    let waking = this.#waking.get(actor.id);
    if (waking === undefined) {
      waking = bringUp(actor)
        .then(() => this.#noteFresh(actor.id))
        .finally(() => this.#waking.delete(actor.id));
      this.#waking.set(actor.id, waking);
    }
    await waking;
  }

  #noteFresh(sandboxId: string): void {
    this.#fresh.add(sandboxId);
    setTimeout(() => this.#fresh.delete(sandboxId), EDGE_LIMITS.ingressServiceMsMax).unref();
  }
}

async function bringUp(actor: SandboxActor): Promise<void> {
  const until = performance.now() + EDGE_LIMITS.ingressWakeMsMax;
  for (let tries = 0; ;) {
    const { state } = actor.row;
    if (state === 'running') return;
    const leftMs = until - performance.now();
    if (leftMs <= 0) throw new DoorError('timeout', 'the sandbox did not come up in time');
    if (isTransitional(state) && state !== 'draining') {
      await actor.settled(leftMs);
      continue;
    }
    if (tries === TRIES_MAX) throw new DoorError('unavailable', 'the sandbox does not come up');
    tries += 1;
    await begin(actor);
  }
}

/** @throws DoorError */
async function begin(actor: SandboxActor): Promise<void> {
  try {
    const { state } = actor.row;
    const isResumed = state === 'paused' || state === 'draining';
    await (isResumed ? actor.resume() : actor.start());
  } catch (error) {
    if (!(error instanceof AppError)) throw error;
    // Another call, such as a stop, may have come first: the next turn looks again.
    const isConflict = error.code.startsWith('sandbox_');
    if (!isConflict) throw new DoorError('unavailable', error.message, { cause: error });
  }
}
