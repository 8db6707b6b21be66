import { randomUUID } from 'node:crypto';
import { duplexPair, type Duplex } from 'node:stream';
import { FrameSplitter } from '../../agent/machines/guest-link/frame-splitter.ts';
import {
  decodeHostFrame,
  encodeGuestFrame,
  GUEST_PROTOCOL_VERSION,
  PROCESS_FLAGS,
  processRecordBytes,
  type GuestFrame,
  type HostFrame,
} from '../../agent/machines/guest-link/guest-protocol.ts';

/** The far side, played by the test: answers what it is told to and says whatever it likes. */
export class PlayedGuest {
  readonly theirs: Duplex;
  readonly #ours: Duplex;
  readonly #splitter = new FrameSplitter();
  readonly #answers: (frame: HostFrame) => readonly GuestFrame[];

  constructor(answers: (frame: HostFrame) => readonly GuestFrame[]) {
    [this.theirs, this.#ours] = duplexPair();
    this.#answers = answers;
    this.#ours.on('error', () => undefined);
    this.#ours.on('data', (chunk: Buffer) => {
      for (const stuffed of this.#splitter.push(chunk)) {
        if (stuffed.length > 0) this.#answer(decodeHostFrame(stuffed));
      }
    });
  }

  /** All in one chunk. */
  say(...frames: readonly GuestFrame[]): void {
    if (frames.length > 0) this.write(Buffer.concat(frames.map(encodeGuestFrame)));
  }

  stopReading(): void {
    this.#ours.pause();
  }

  write(bytes: Buffer): void {
    if (!this.#ours.destroyed) this.#ours.write(bytes);
  }

  #answer(frame: HostFrame): void {
    this.say(...this.#answers(frame));
  }
}

export const welcome = (epoch: string): GuestFrame => ({
  type: 'welcome',
  request: 0,
  version: GUEST_PROTOCOL_VERSION,
  epoch,
  instance: randomUUID(),
});

/** Answers like a real guest the few requests that these tests send. */
export function orderly(frame: HostFrame): GuestFrame[] {
  const { request } = frame;
  switch (frame.type) {
    case 'hello':
      return [welcome(frame.epoch)];
    case 'list':
      return [{ type: 'records', request, next: 0, records: Buffer.alloc(0) }];
    case 'start':
      return [{ type: 'started', request, pid: 2 }];
    case 'readClock':
      return [{ type: 'time', request, realUs: Date.now() * 1000, monotonicUs: 0 }];
    case 'stage':
    case 'stdin':
    case 'ack':
      return [];
    default:
      return [{ type: 'done', request }];
  }
}

/**
 * A process that runs and has put so much out, as a guest lists it; with `sinceEndMs` one that has
 * ended with exit code 0.
 */
export function recordOf(id: string, end: number, sinceEndMs?: bigint): Buffer {
  const record = Buffer.alloc(processRecordBytes);
  Buffer.from(id.replaceAll('-', ''), 'hex').copy(record);
  record.writeUInt32LE(2, 16); // Its pid inside the guest.
  record.writeBigUInt64LE(BigInt(end), 36);
  if (sinceEndMs !== undefined) {
    record.writeUInt8(PROCESS_FLAGS.exited, 20);
    record.writeBigUInt64LE(sinceEndMs, 68);
  }
  return record;
}

/** The end of a process with exit code 0. */
export const exitOf = (id: string, end: number): GuestFrame => ({
  type: 'exited',
  request: 0,
  id,
  flags: 0,
  status: 0,
  end,
  sinceEndMs: 0,
});
