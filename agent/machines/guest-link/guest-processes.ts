import type { GuestConnection } from './guest-connection.ts';
import { GuestProtocolError } from './guest-errors.ts';
import {
  decodeProcessRecords,
  endedAtOf,
  GUEST_LIMITS,
  PROCESS_FLAGS,
  type GuestProcessRecord,
} from './guest-protocol.ts';
import type { Answer } from './guest-requests.ts';
import { endOfProcess } from './process-end.ts';
import type { GuestExit, GuestOutput } from './guest-types.ts';
import { ProcessFlow } from './process-flow.ts';

/** Called when the guest tells of a process. */
interface Callbacks {
  readonly output: (output: GuestOutput) => void;
  readonly exited: (exit: GuestExit) => void;
  readonly taken: (processId: string, offset: number) => void;
  readonly evicted: (processId: string) => void;
}

/** @throws GuestProtocolError when there is no such stream */
function checkStream(stream: number): 1 | 2 {
  if (stream !== 1 && stream !== 2) throw new GuestProtocolError('no such stream');
  return stream;
}

/** @throws GuestProtocolError when there are more than a guest may have */
function append(all: GuestProcessRecord[], records: readonly GuestProcessRecord[]): void {
  all.push(...records);
  if (all.length > GUEST_LIMITS.processesMax) throw new GuestProtocolError('too many processes');
}

/**
 * The processes of one guest as this connection knows them, and the flow of bytes to and from each.
 */
export class GuestProcesses {
  readonly #connection: GuestConnection;
  readonly #callbacks: Callbacks;
  readonly #flows = new Map<string, ProcessFlow>();
  readonly #acksDue = new Set<string>();
  /** The guest's list of processes when the connection began, updated with exits since then. */
  readonly #listed: GuestProcessRecord[] = [];
  #isListed = false;

  constructor(connection: GuestConnection, callbacks: Callbacks) {
    this.#connection = connection;
    this.#callbacks = callbacks;
  }

  /** Asks the guest for its processes. @returns a list that later exits are entered into */
  async learn(): Promise<GuestProcessRecord[]> {
    const all = this.#listed;
    let after = 0;
    do {
      after = await this.#page(after, (records, next) => {
        for (const record of records) this.#flows.set(record.id, ProcessFlow.ofRecord(record));
        append(all, records);
        if (this.#flows.size !== all.length) throw new GuestProtocolError('process listed twice');
        this.#isListed = next === 0;
      });
    } while (after !== 0);
    return all;
  }

  /** Every process that the guest knows now. */
  async list(): Promise<GuestProcessRecord[]> {
    const all: GuestProcessRecord[] = [];
    let after = 0;
    do {
      after = await this.#page(after, (records) => {
        append(all, records);
      });
    } while (after !== 0);
    return all;
  }

  /**
   * Whether the guest's table has room for another process besides those that are about to start.
   * Processes stay in it until they are forgotten or evicted; a fork inherits its parent's.
   */
  hasRoomBeside(starting: ReadonlySet<string>): boolean {
    const unknown = [...starting].filter((id) => !this.#flows.has(id));
    const evictable = [...this.#flows.values()].filter(({ isEvictable }) => isEvictable);
    return this.#flows.size - evictable.length + unknown.length < GUEST_LIMITS.processesMax;
  }

  /** Adds a process that is about to start. @throws RangeError for a full table or a taken id */
  add(id: string, spec: { isFollowed: boolean; isAttachable: boolean }): void {
    if (this.#flows.has(id)) throw new RangeError('process id is taken');
    if (!this.hasRoomBeside(new Set())) throw new RangeError('too many processes');
    this.#flows.set(id, ProcessFlow.ofNew(spec));
  }

  /** @throws RangeError when it is not known */
  flow(id: string): ProcessFlow {
    const flow = this.#flows.get(id);
    if (flow === undefined) throw new RangeError('no such process');
    return flow;
  }

  drop(id: string): void {
    this.#flows.get(id)?.wake();
    this.#flows.delete(id);
    this.#acksDue.delete(id);
  }

  /** Wakes everything that waits for the guest, because the connection is closed. */
  wakeAll(): void {
    for (const flow of this.#flows.values()) flow.wake();
  }

  /** Resolves when the guest has room for all of it; calls for one process keep their order. */
  writeStdin(id: string, bytes: Buffer): Promise<void> {
    const flow = this.flow(id);
    return flow.stdinWrites.add(() => this.#writeStdin(id, flow, bytes));
  }

  acknowledge(id: string, offset: number): void {
    if (this.#flows.get(id)?.acknowledge(offset) !== true) return;
    if (this.#acksDue.size === 0) setImmediate(() => this.#sendAcks());
    this.#acksDue.add(id);
  }

  /** @throws GuestProtocolError when these bytes could not come now */
  receiveOutput({ id, stream, offset, bytes }: Answer<'output'>): void {
    const flow = this.#flowOfGuest(id);
    if (flow === undefined) throw new GuestProtocolError('output that nobody follows');
    const checked = checkStream(stream);
    flow.receiveOutput(offset, bytes.length);
    this.#callbacks.output({ processId: id, stream: checked, offset, bytes });
  }

  receiveExit({ id, flags, status, end, sinceEndMs }: Answer<'exited'>): void {
    const flow = this.#flowOfGuest(id);
    if (flow === undefined) return;
    flow.receiveExit(end);
    const endedAt = endedAtOf(sinceEndMs);
    const exit = { flags, status, end, endedAt };
    this.#noteEnd(id, exit);
    this.#callbacks.exited({ processId: id, ...endOfProcess(exit) });
  }

  receiveEvicted({ id }: Answer<'evicted'>): void {
    if (this.#flowOfGuest(id) === undefined) return;
    this.drop(id);
    this.#callbacks.evicted(id);
  }

  receiveTaken({ id, offset }: Answer<'taken'>): void {
    const flow = this.#flowOfGuest(id);
    if (flow === undefined) return;
    flow.receiveTaken(offset);
    this.#callbacks.taken(id, offset);
  }

  /** Asks for one page. @returns the index of the next page; 0 after the last */
  async #page(
    after: number,
    apply: (records: GuestProcessRecord[], next: number) => void,
  ): Promise<number> {
    const frame = { type: 'list', after } as const;
    const { next } = await this.#connection.ask('records', frame, {
      apply: (page) => {
        const isLast = page.next === 0;
        if (!isLast && (page.next <= after || page.next > GUEST_LIMITS.processesMax)) {
          throw new GuestProtocolError('pages of processes do not end');
        }
        apply(decodeProcessRecords(page.records), page.next);
      },
    });
    return next;
  }

  /** Until the list is complete, frames may concern a process that a later page will contain. */
  #flowOfGuest(id: string): ProcessFlow | undefined {
    const flow = this.#flows.get(id);
    if (flow === undefined && this.#isListed) throw new GuestProtocolError('unknown process');
    return flow;
  }

  #noteEnd(
    id: string,
    exit: Pick<GuestProcessRecord, 'flags' | 'status' | 'end' | 'endedAt'>,
  ): void {
    const index = this.#listed.findIndex((record) => record.id === id);
    const record = this.#listed[index];
    if (record === undefined) return;
    const flags = record.flags | PROCESS_FLAGS.exited | exit.flags;
    this.#listed[index] = { ...record, ...exit, flags };
  }

  async #writeStdin(id: string, flow: ProcessFlow, bytes: Buffer): Promise<void> {
    let left = bytes;
    while (left.length > 0) {
      while (flow.credit === 0 && this.#mayTakeMore(id, flow)) await flow.creditChange();
      if (flow.hasExited) return; // Bytes that the guest will not read count as written.
      left = await this.#connection.inTurn(() => {
        if (this.#flows.get(id) !== flow) throw new RangeError('no such process');
        const piece = left.subarray(0, Math.min(flow.credit, GUEST_LIMITS.payloadMax));
        const offset = flow.stdinSent;
        this.#connection.send({ type: 'stdin', request: 0, id, offset, bytes: piece });
        flow.sendStdin(piece.length);
        return left.subarray(piece.length);
      });
    }
  }

  #mayTakeMore(id: string, flow: ProcessFlow): boolean {
    return !this.#connection.isClosed && !flow.hasExited && this.#flows.get(id) === flow;
  }

  #sendAcks(): void {
    for (const id of this.#acksDue) {
      const offset = this.#flows.get(id)?.takeAck();
      if (offset !== undefined && !this.#connection.isClosed) {
        this.#connection.send({ type: 'ack', request: 0, id, offset });
      }
    }
    this.#acksDue.clear();
  }
}
