import { SANDBOX_LIMITS } from '../limits.ts';
import type { GuestChannel } from '../../machines/guest-link/guest-channel.ts';
import { GuestUnavailableError } from '../../machines/guest-link/guest-errors.ts';
import {
  type GuestProcessRecord,
  PROCESS_FLAGS,
} from '../../machines/guest-link/guest-protocol.ts';
import { endOfProcess, type ProcessEnd } from '../../machines/guest-link/process-end.ts';
import type { Attachment, OutputPiece } from './attachment.ts';
import { ProcessInput, type WaitingInput } from './process-input.ts';
import { ProcessError } from './process-error.ts';
import { type ProcessExit, processExit } from './process-exit.ts';

/** The part of a command that listings need, in a string that does not keep the rest in memory. */
const beginningOf = (command: string): string =>
  Buffer.from(command.slice(0, SANDBOX_LIMITS.sandboxCommandListedMax + 1)).toString();

const hasFlag = (record: GuestProcessRecord, flag: number): boolean => (record.flags & flag) !== 0;

/**
 * A process of a sandbox and the clients that are attached to it. The guest owns the process and
 * keeps its output; this follows it on behalf of all clients together, from the offset of the one
 * that is furthest behind, and acknowledges what all of them have. So the slowest client sets the
 * pace, and nothing is kept here.
 */
export class AttachableProcess {
  readonly id: string;
  /** Its first characters, one more than are listed. Undefined when a former agent started it. */
  readonly command: string | undefined;
  readonly input: ProcessInput;
  readonly #attachments = new Set<Attachment>();
  #channel: GuestChannel | undefined;
  /** Whether the guest lets it wait for its clients, as far as this host has asked for that. */
  #isFollowed = false;
  #end: ProcessEnd | undefined;
  /** All input before this offset was taken by the process. */
  #inputTaken = 0;
  /** Why the sandbox is about to end it, if it is. */
  #expected: string | undefined;

  /** @param received how many bytes of input the guest has already */
  constructor(
    id: string,
    waiting: WaitingInput,
    { command, received = 0 }: { readonly command?: string; readonly received?: number },
  ) {
    this.id = id;
    this.command = command === undefined ? undefined : beginningOf(command);
    this.input = new ProcessInput(id, waiting, received);
  }

  get inputTaken(): number {
    return this.#inputTaken;
  }

  /** How many clients are attached. */
  get attachedCount(): number {
    return this.#attachments.size;
  }

  get hasEnded(): boolean {
    return this.#end !== undefined;
  }

  /** Begins with the first client, who receives every byte. */
  begin(channel: GuestChannel): void {
    this.#channel = channel;
    this.#isFollowed = true;
    this.input.resume(channel);
    for (const attachment of this.#attachments) attachment.begin(0);
    this.runOn(); // The client may have been sent away meanwhile.
  }

  /** Goes on over a new channel, which tells it as this record. */
  adopt(channel: GuestChannel, record: GuestProcessRecord): void {
    this.#channel = channel;
    this.#isFollowed = hasFlag(record, PROCESS_FLAGS.followed);
    this.receiveTaken(record.stdinTaken);
    if (hasFlag(record, PROCESS_FLAGS.exited)) this.#end ??= endOfProcess(record);
    if (this.hasEnded) this.input.end();
    else this.input.resume(channel);
    for (const attachment of this.#attachments) attachment.isLive = false;
    if (this.#attachments.size > 0) this.#follow();
    else this.runOn();
  }

  attach(attachment: Attachment): void {
    this.#attachments.add(attachment);
    this.#follow();
  }

  /** Like `attach`, before the process is started. */
  attachFirst(attachment: Attachment): void {
    this.#attachments.add(attachment);
  }

  detach(attachment: Attachment): void {
    if (!this.#remove(attachment)) return;
    if (this.#attachments.size === 0) this.#unfollow();
    else this.#acknowledge();
  }

  /** Everything before the offset has left the host for this client. */
  acknowledge(attachment: Attachment, offset: number): void {
    attachment.acknowledged = Math.max(attachment.acknowledged, offset);
    this.#acknowledge();
  }

  receiveOutput(channel: GuestChannel, piece: OutputPiece): void {
    if (channel !== this.#channel) return;
    for (const attachment of this.#attachments) {
      attachment.receive(piece);
      this.#tellEnd(attachment);
    }
    this.#acknowledge(); // Also of what none of them wanted.
  }

  receiveTaken(offset: number): void {
    if (offset <= this.#inputTaken) return;
    this.#inputTaken = offset;
    for (const { client } of this.#attachments) client.inputTaken(offset, this.input.acceptedEnd);
  }

  receiveEnd(end: ProcessEnd): void {
    this.#end = end;
    this.input.end();
    for (const attachment of this.#attachments) this.#tellEnd(attachment);
  }

  /** The sandbox is about to stop: however it ends from here on, that is why. */
  expectEnd(why: string): void {
    this.#expected = why;
  }

  /** This host has nothing more to do with it, whether it runs on or not. */
  leave(error?: ProcessError): void {
    this.input.end();
    this.releaseClients(error);
  }

  /** Its clients leave; it runs on, or stands still, and loses nothing meanwhile. */
  releaseClients(error?: ProcessError): void {
    for (const attachment of [...this.#attachments]) {
      this.#remove(attachment);
      attachment.client.detached(error);
    }
  }

  /** Waits for nobody when it has no clients; see `releaseClients`. */
  runOn(): void {
    if (this.#isFollowed && this.#attachments.size === 0) this.#unfollow();
  }

  /** The guest does not keep it any more. */
  evict(): void {
    const message = 'the process is not kept any more';
    this.leave(new ProcessError('process_not_found', message));
  }

  /**
   * The process is gone with its machine, or the guest knows it no more. The arguments tell how it
   * ended, unless that is known.
   */
  lose(status: ProcessExit['status'], reason: string): void {
    this.input.end();
    const known = this.#end === undefined ? undefined : processExit(this.#end, this.#expected);
    for (const attachment of [...this.#attachments]) {
      this.#remove(attachment);
      attachment.client.ended(known ?? { status, reason, cursor: attachment.cursor });
    }
  }

  #follow(): void {
    const channel = this.#channel;
    if (channel === undefined) return; // The next one is followed when it is there.
    this.#isFollowed = true;
    const waiting = [...this.#attachments].filter(({ isLive }) => !isLive);
    // Not from what they were given: that would open the window again for a client that is stalled.
    const from = Math.min(...[...this.#attachments].map(({ acknowledged }) => acknowledged));
    const followed = (offset: number): void => {
      for (const attachment of waiting) {
        attachment.begin(offset);
        this.#tellEnd(attachment);
      }
    };
    channel.follow(this.id, from, followed).catch((error: unknown) => {
      if (error instanceof GuestUnavailableError) return; // The next channel takes it up.
      this.evict();
    });
  }

  #unfollow(): void {
    this.#isFollowed = false;
    // A refusal: the process is evicted, or the channel broke.
    this.#channel?.unfollow(this.id).catch(() => undefined);
  }

  #acknowledge(): void {
    if (this.#attachments.size === 0) return;
    const offset = Math.min(...[...this.#attachments].map((each) => each.acknowledged));
    this.#channel?.acknowledge(this.id, offset);
  }

  #remove(attachment: Attachment): boolean {
    const wasThere = this.#attachments.delete(attachment);
    if (wasThere) attachment.release();
    return wasThere;
  }

  #tellEnd(attachment: Attachment): void {
    if (this.#end === undefined || !attachment.isLive) return;
    if (attachment.cursor < this.#end.end || !this.#remove(attachment)) return;
    if (this.#attachments.size === 0) this.#unfollow();
    attachment.client.ended(processExit(this.#end, this.#expected));
  }
}
