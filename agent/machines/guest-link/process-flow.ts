import { GUEST_LIMITS, PROCESS_FLAGS, type GuestProcessRecord } from './guest-protocol.ts';
import { SerialQueue } from '../../system/queues/serial-queue.ts';
import { GuestProtocolError } from './guest-errors.ts';

/** Flow control of one process: which output may still arrive, and how much input may be sent. */
export class ProcessFlow {
  /** Undefined while it is not followed. */
  #nextOutput: number | undefined;
  #acked = 0;
  #ackDue = false;
  /** Frames of output since all that had come was acknowledged. */
  #frames = 0;
  /** Requests to follow that were not answered. */
  #followsAsked = 0;
  /** The end of the last byte that has come. */
  #receivedEnd = 0;
  #outputEnd: number | undefined;
  readonly #isAttachable: boolean;
  #stdinSent: number;
  #stdinTaken: number;
  readonly #creditWaiters: (() => void)[] = [];
  readonly stdinWrites = new SerialQueue();

  private constructor(
    isAttachable: boolean,
    stdin: { readonly sent: number; readonly taken: number },
    outputEnd: number | undefined,
  ) {
    this.#isAttachable = isAttachable;
    this.#stdinSent = stdin.sent;
    this.#stdinTaken = stdin.taken;
    this.#outputEnd = outputEnd;
  }

  static ofNew(spec: {
    readonly isFollowed: boolean;
    readonly isAttachable: boolean;
  }): ProcessFlow {
    const flow = new ProcessFlow(spec.isAttachable, { sent: 0, taken: 0 }, undefined);
    if (spec.isFollowed) flow.follow(0);
    return flow;
  }

  /** @throws GuestProtocolError when the record contradicts itself */
  static ofRecord(record: GuestProcessRecord): ProcessFlow {
    const { oldest, end, stdinReceived, stdinTaken } = record;
    const isExited = (record.flags & PROCESS_FLAGS.exited) !== 0;
    if (oldest > end || end - oldest > GUEST_LIMITS.ringMax) {
      throw new GuestProtocolError('guest keeps impossible output');
    }
    if (stdinTaken > stdinReceived || stdinReceived - stdinTaken > GUEST_LIMITS.inputWindow) {
      throw new GuestProtocolError('guest took impossible input');
    }
    const isAttachable = (record.flags & PROCESS_FLAGS.session) !== 0;
    const stdin = { sent: stdinReceived, taken: stdinTaken };
    return new ProcessFlow(isAttachable, stdin, isExited ? end : undefined);
  }

  get hasExited(): boolean {
    return this.#outputEnd !== undefined;
  }

  /** The guest evicts it when it needs the place. */
  get isEvictable(): boolean {
    return this.#isAttachable && this.hasExited && this.#nextOutput === undefined;
  }

  get stdinSent(): number {
    return this.#stdinSent;
  }

  /** How much stdin may be sent now. */
  get credit(): number {
    return this.#stdinTaken + GUEST_LIMITS.inputWindow - this.#stdinSent;
  }

  /**
   * From here to the answer nothing is acknowledged: the guest takes up everything again from the
   * offset asked for, and would take it for an acknowledgement of that.
   */
  askToFollow(): void {
    this.#followsAsked += 1;
    this.#ackDue = false;
  }

  /** Answered, or refused. */
  followAnswered(): void {
    this.#followsAsked -= 1;
  }

  follow(offset: number): void {
    this.#nextOutput = offset;
    this.#acked = offset;
    this.#frames = 0;
    this.#ackDue = false;
  }

  unfollow(): void {
    this.#nextOutput = undefined;
    this.#ackDue = false;
  }

  /** @throws GuestProtocolError for bytes that a sound guest cannot send now */
  receiveOutput(offset: number, length: number): void {
    if (offset !== this.#nextOutput) throw new GuestProtocolError('output out of turn');
    const end = offset + length;
    this.#frames += 1;
    const isBeyond = end > this.#acked + GUEST_LIMITS.outputWindow;
    if (isBeyond || this.#frames > GUEST_LIMITS.outputFrames) {
      throw new GuestProtocolError('output beyond the window');
    }
    if (length === 0 || end > (this.#outputEnd ?? Infinity)) {
      throw new GuestProtocolError('output after the end');
    }
    this.#nextOutput = end;
    this.#receivedEnd = Math.max(this.#receivedEnd, end);
  }

  /** @throws GuestProtocolError when it ended before */
  receiveExit(end: number): void {
    if (this.hasExited || end < this.#receivedEnd) {
      throw new GuestProtocolError('process ended impossibly');
    }
    this.#outputEnd = end;
    this.wake();
  }

  /** Acknowledges all output before the offset. @returns whether an ack has to be sent */
  acknowledge(offset: number): boolean {
    if (this.#nextOutput === undefined || this.#followsAsked > 0) return false;
    const wasDue = this.#ackDue;
    const acked = Math.min(offset, this.#nextOutput);
    if (acked <= this.#acked) return false;
    this.#acked = acked;
    this.#ackDue = true;
    return !wasDue;
  }

  /** @returns the offset to send in an ack, once; undefined when the guest has been told */
  takeAck(): number | undefined {
    if (!this.#ackDue) return undefined;
    this.#ackDue = false;
    if (this.#acked === this.#nextOutput) this.#frames = 0;
    return this.#acked;
  }

  sendStdin(length: number): void {
    this.#stdinSent += length;
  }

  /** @throws GuestProtocolError when less was sent, or so much was taken before */
  receiveTaken(offset: number): void {
    if (offset <= this.#stdinTaken || offset > this.#stdinSent) {
      throw new GuestProtocolError('input taken that was not sent');
    }
    this.#stdinTaken = offset;
    this.wake();
  }

  /** Resolves when credit may have come, or the process or connection has ended. */
  creditChange(): Promise<void> {
    return new Promise((resolve) => {
      this.#creditWaiters.push(resolve);
    });
  }

  wake(): void {
    for (const resolve of this.#creditWaiters.splice(0)) resolve();
  }
}
