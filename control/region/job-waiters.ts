import { AppError, toError } from '../../shared/errors.ts';
import type { AgentFrame } from '../../shared/links/stream-protocol.ts';
import { refusalOf } from './not-taken.ts';

interface JobAnswer {
  readonly result: object;
  readonly body: readonly Buffer[];
}

/** The outcome of waiting for a job: `lost` when the agent's link broke first. */
export type Settlement =
  | { readonly kind: 'answer'; readonly answer: JobAnswer }
  | { readonly kind: 'error'; readonly error: AppError }
  | { readonly kind: 'lost'; readonly accepted: boolean };

/** Receives the parts of a result that are sent ahead of its end. */
export type OnPart = (part: Buffer) => void;

interface Waiter {
  readonly hostId: string;
  readonly settle: (settlement: Settlement) => void;
  readonly onPart: OnPart | undefined;
  accepted: boolean;
}

/** A frame with news of a job. */
export type JobFrame = Extract<AgentFrame, { jobId: string }>;

/** Callers on this node that wait for the answers of hosts. */
export class JobWaiters {
  readonly #waiters = new Map<string, Waiter>();
  /** The same by host, so that one host costs nothing for the jobs of others. */
  readonly #byHost = new Map<string, Set<Waiter>>();

  /** Waits for a job's answer; call it before the job is queued. */
  async waitFor(jobId: string, hostId: string, onPart?: OnPart): Promise<Settlement> {
    const { promise, resolve } = Promise.withResolvers<Settlement>();
    const ofHost = this.#byHost.get(hostId) ?? new Set();
    this.#byHost.set(hostId, ofHost);
    const waiter: Waiter = {
      hostId,
      onPart,
      accepted: false,
      settle: (settlement) => {
        this.#waiters.delete(jobId);
        ofHost.delete(waiter);
        if (ofHost.size === 0 && this.#byHost.get(hostId) === ofHost) this.#byHost.delete(hostId);
        resolve(settlement);
      },
    };
    ofHost.add(waiter);
    this.#waiters.set(jobId, waiter);
    return promise;
  }

  get size(): number {
    return this.#waiters.size;
  }

  /** How many wait for answers of the host. */
  pendingOf(hostId: string): number {
    return this.#byHost.get(hostId)?.size ?? 0;
  }

  /** Stops waiting for a job: its caller is told what `error` says. */
  giveUp(jobId: string, error: AppError): void {
    this.#waiters.get(jobId)?.settle({ kind: 'error', error });
  }

  wasAccepted(jobId: string): boolean {
    return this.#waiters.get(jobId)?.accepted ?? true;
  }

  /** Everything that this host owes an answer for is settled as lost. */
  lose(hostId: string): void {
    for (const waiter of this.#byHost.get(hostId) ?? []) {
      waiter.settle({ kind: 'lost', accepted: waiter.accepted });
    }
  }

  /** @throws Error when the job is another host's */
  receive(hostId: string, frame: JobFrame, body: readonly Buffer[]): void {
    // Late news of a job that nobody waits for is no fault; news from another host is.
    const waiter = this.#waiters.get(frame.jobId);
    if (waiter === undefined) return;
    if (waiter.hostId !== hostId) throw new Error('answer to a job of another host');
    settleWith(waiter, frame, body);
  }
}

/** Parts that cannot be read are a fault of this job's answer, not of the link. */
function takeParts({ settle, onPart }: Waiter, body: readonly Buffer[]): void {
  try {
    for (const part of body) onPart?.(part);
  } catch (error) {
    settle({ kind: 'error', error: unreadable(error) });
  }
}

const unreadable = (thrown: unknown): AppError =>
  thrown instanceof AppError
    ? thrown
    : new AppError('internal_server_error', 'the host sent an answer that cannot be read', {
        cause: toError(thrown),
      });

function settleWith(waiter: Waiter, frame: JobFrame, body: readonly Buffer[]): void {
  switch (frame.type) {
    case 'accepted': {
      waiter.accepted = true;
      break;
    }
    case 'part': {
      takeParts(waiter, body);
      break;
    }
    case 'result': {
      waiter.settle({ kind: 'answer', answer: { result: frame.result, body } });
      break;
    }
    case 'error': {
      const { code, message } = frame;
      const error = waiter.accepted
        ? new AppError(code, message)
        : refusalOf(waiter.hostId, code, message);
      waiter.settle({ kind: 'error', error });
      break;
    }
  }
}
