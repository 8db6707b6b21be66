import { randomBytes } from 'node:crypto';
import { EventEmitter, once } from 'node:events';
import type { Duplex } from 'node:stream';
import {
  decodeGuestFrame,
  decodeProcessRecords,
  encodeHostFrame,
  GUEST_LIMITS,
  GUEST_PROTOCOL_VERSION,
  PROCESS_FLAGS,
  type GuestFrame,
  type GuestProcessRecord,
  type HostFrame,
} from './guest-protocol.ts';
import { toError } from '../../shared/errors.ts';
import { FrameSplitter } from './frame-splitter.ts';
import { GuestProtocolError, GuestUnavailableError } from './guest-errors.ts';
import { GuestRequests, type Answer } from './guest-requests.ts';
import type { GuestEvents, GuestOutput, GuestProcessSpec, GuestSettings } from './guest-types.ts';
import { openEpoch } from './open-epoch.ts';
import { ProcessFlow } from './process-flow.ts';

const TIMEOUTS_MS = {
  request: 10_000,
  start: 30_000, // The working directory may lie on a disk that answers slowly.
  configure: 30_000, // The root disk may have its journal to replay.
  beyondFreeze: 5_000,
  pingInterval: 5_000,
} as const;

const ENTROPY_BYTES = 64;

/** A guest that reads nothing is given up before more than this waits for it. */
const WAITING_BYTES_MAX = 16 * 1024 ** 2;

const NO_NETWORK = {
  interface: '',
  address: '0.0.0.0',
  prefixBits: 0,
  gateway: '0.0.0.0',
  resolver: '0.0.0.0',
  mtuBytes: 0,
} as const;

const terminated = (text: string): Buffer => {
  if (text.includes('\0')) throw new RangeError('text with NUL');
  return Buffer.from(`${text}\0`);
};

const environmentBlock = (environment: Readonly<Record<string, string>>): Buffer =>
  Buffer.concat(Object.entries(environment).map(([name, value]) => terminated(`${name}=${value}`)));

/**
 * The host's end of the channel to one guest (docs/guest-protocol.md). Whatever comes is checked; the
 * first thing that no guest of ours says closes the channel.
 */
export class GuestChannel extends EventEmitter<GuestEvents> {
  /** Another one means that the guest was booted again: its processes are others too. */
  readonly instance: string;
  readonly #stream: Duplex;
  readonly #splitter = new FrameSplitter();
  readonly #requests = new GuestRequests();
  readonly #flows = new Map<string, ProcessFlow>();
  readonly #acksDue = new Set<string>();
  /** What the guest told of its processes when this channel was opened, with their ends since. */
  readonly #listed: GuestProcessRecord[] = [];
  #turn: Promise<unknown> = Promise.resolve();
  #isListed = false;
  #isClosed = false;
  #pinger: NodeJS.Timeout | undefined;

  private constructor(stream: Duplex, instance: string) {
    super();
    this.#stream = stream;
    this.instance = instance;
    stream.on('data', (chunk: Buffer) => this.#receive(chunk));
    stream.on('error', (cause) => {
      this.#end(new GuestUnavailableError(`the guest hung up: ${cause.message}`, { cause }));
    });
    stream.on('close', () => this.#end(new GuestUnavailableError('the guest hung up')));
    stream.resume();
  }

  /**
   * Begins a new epoch on a stream that may still hold bytes of former ones, and learns which
   * processes there are. The stream belongs to the channel from here on. Ends that come before
   * anybody listens are in `processes`.
   * @throws GuestUnavailableError when the guest does not answer in time
   * @throws GuestProtocolError when it answers with something else
   */
  static async open(
    stream: Duplex,
    options: { timeoutMs?: number } = {},
  ): Promise<{ channel: GuestChannel; processes: GuestProcessRecord[] }> {
    const { welcome, rest } = await openEpoch(stream, options.timeoutMs ?? TIMEOUTS_MS.request);
    if (welcome.version !== GUEST_PROTOCOL_VERSION) {
      stream.destroy();
      throw new GuestProtocolError('guest speaks another version');
    }
    const channel = new GuestChannel(stream, welcome.instance);
    channel.#receive(rest);
    try {
      await channel.#learnProcesses();
      // What came right behind the list may have ended it, before anybody could be told.
      if (channel.#isClosed) throw new GuestUnavailableError('the guest hung up');
      channel.#pingRegularly();
      return { channel, processes: channel.#listed };
    } catch (error) {
      channel.#end(toError(error));
      throw error;
    }
  }

  /** Identity, time, entropy, network and root disk. Resolves when all of it took effect. */
  async configure(settings: GuestSettings): Promise<void> {
    const { network = NO_NETWORK, rootDisk } = settings;
    const environment = environmentBlock(settings.environment);
    const { interface: networkInterface, ...addresses } = network;
    const frame = {
      type: 'configure',
      hostname: settings.hostname,
      machineId: settings.machineId,
      bootId: settings.bootId,
      directory: settings.directory,
      ...addresses,
      networkInterface,
      rootDevice: rootDisk?.device ?? '',
      rootType: rootDisk?.type ?? '',
      environmentBytes: environment.length,
    } as const;
    const { answered } = await this.#inTurn(() => {
      this.#stage(environment);
      const fresh = { entropy: randomBytes(ENTROPY_BYTES), clockUs: Date.now() * 1000 };
      return { answered: this.#ask('done', TIMEOUTS_MS.configure, { ...frame, ...fresh }) };
    });
    await answered;
  }

  /** Resolves with the shell's process number inside once it was executed. */
  async start(spec: GuestProcessSpec): Promise<number> {
    const command = terminated(spec.command);
    const environment = environmentBlock(spec.environment);
    const directory = terminated(spec.directory);
    const flags =
      (spec.terminal === undefined ? 0 : PROCESS_FLAGS.terminal) |
      (spec.stdin ? PROCESS_FLAGS.stdin : 0) |
      (spec.isFollowed ? PROCESS_FLAGS.followed : 0);
    const frame = {
      type: 'start',
      id: spec.id,
      flags,
      columns: spec.terminal?.columns ?? 0,
      rows: spec.terminal?.rows ?? 0,
      commandBytes: command.length,
      environmentBytes: environment.length,
      directoryBytes: directory.length,
    } as const;
    const { answered } = await this.#inTurn(() => {
      if (this.#flows.has(spec.id)) throw new RangeError('process id is taken');
      if (this.#flows.size >= GUEST_LIMITS.processesMax) throw new RangeError('too many processes');
      this.#flows.set(spec.id, ProcessFlow.ofNew(spec.isFollowed));
      this.#stage(Buffer.concat([command, environment, directory]));
      const drop = (): void => this.#drop(spec.id);
      return { answered: this.#ask('started', TIMEOUTS_MS.start, frame, undefined, drop) };
    });
    return (await answered).pid;
  }

  /** Resolves when the guest has room for all of it; calls for one process keep their order. */
  writeStdin(id: string, bytes: Buffer): Promise<void> {
    const flow = this.#flow(id);
    const written = flow.stdinTail.then(() => this.#writeStdin(id, flow, bytes));
    flow.stdinTail = written.catch(() => undefined);
    return written;
  }

  /** End of file for the process, after everything that was written before. */
  async closeStdin(id: string): Promise<void> {
    const flow = this.#flow(id);
    await flow.stdinTail;
    await this.#request({ type: 'closeStdin', id, offset: flow.stdinSent });
  }

  /** @throws GuestFailure `unsupported` when the process has no terminal */
  async resize(id: string, columns: number, rows: number): Promise<void> {
    await this.#request({ type: 'resize', id, columns, rows });
  }

  /** To the process's group. Nothing happens when it has ended. */
  async signal(id: string, number: number): Promise<void> {
    await this.#request({ type: 'signal', id, number });
  }

  /**
   * Output comes from the offset on, or from the oldest that is left; resolves with where it begins.
   * From now on the process waits rather than lose output that was not acknowledged, also while no
   * host is there.
   */
  async follow(id: string, offset: number): Promise<number> {
    const flow = this.#flow(id);
    const apply = (answer: Answer<'followed'>): void => {
      if (answer.offset < offset) throw new GuestProtocolError('output begins too early');
      flow.follow(answer.offset);
    };
    const frame = { type: 'follow', id, offset } as const;
    return (await this.#ask('followed', TIMEOUTS_MS.request, frame, apply)).offset;
  }

  /** Nobody wants the output now: the guest keeps the last of it and the process never waits. */
  async unfollow(id: string): Promise<void> {
    const flow = this.#flow(id);
    const apply = (): void => flow.unfollow();
    await this.#ask('done', TIMEOUTS_MS.request, { type: 'unfollow', id }, apply);
  }

  /** All output before the offset was dealt with; without this no more than the window comes. */
  acknowledge(id: string, offset: number): void {
    if (this.#flows.get(id)?.acknowledge(offset) !== true) return;
    if (this.#acksDue.size === 0) setImmediate(() => this.#sendAcks());
    this.#acksDue.add(id);
  }

  /** A piece of what the guest has kept, from one stream; empty when there is none yet. */
  async read(id: string, offset: number, lengthMax: number): Promise<GuestOutput> {
    const frame = { type: 'read', id, offset, length: lengthMax } as const;
    const chunk = await this.#ask('chunk', TIMEOUTS_MS.request, frame, (answer) => {
      checkStream(answer.stream);
      if (answer.offset < offset || answer.bytes.length > lengthMax) {
        throw new GuestProtocolError('other output than was asked for');
      }
    });
    return {
      processId: id,
      stream: chunk.stream === 2 ? 2 : 1,
      offset: chunk.offset,
      bytes: Buffer.from(chunk.bytes),
    };
  }

  /** Drops what the guest has kept of a process that has ended. */
  async forget(id: string): Promise<void> {
    this.#flow(id);
    const apply = (): void => this.#drop(id);
    await this.#ask('done', TIMEOUTS_MS.request, { type: 'forget', id }, apply);
  }

  /** Every process that the guest knows. */
  async list(): Promise<GuestProcessRecord[]> {
    const records: GuestProcessRecord[] = [];
    let after = 0;
    do {
      const page = await this.#page(after, () => undefined);
      records.push(...page.records);
      after = page.next;
    } while (after !== 0);
    return records;
  }

  async stats(): Promise<Omit<Answer<'figures'>, 'type' | 'request'>> {
    return this.#ask('figures', TIMEOUTS_MS.request, { type: 'stats' });
  }

  async ping(): Promise<void> {
    await this.#request({ type: 'ping' });
  }

  /** Resolves when no process runs and the disks are written. A freeze that fails is undone. */
  async freeze(timeoutMs: number): Promise<void> {
    const patienceMs = timeoutMs + TIMEOUTS_MS.beyondFreeze;
    await this.#ask('done', patienceMs, { type: 'freeze', timeoutMs });
  }

  async thaw(): Promise<void> {
    await this.#request({ type: 'thaw' });
  }

  /** Resolves when the guest has begun to end. */
  async shutdown(graceMs: number): Promise<void> {
    await this.#request({ type: 'shutdown', graceMs });
  }

  /** Processes go on; the next channel finds them. */
  close(): void {
    this.#end(undefined);
  }

  #flow(id: string): ProcessFlow {
    const flow = this.#flows.get(id);
    if (flow === undefined) throw new RangeError('no such process');
    return flow;
  }

  #drop(id: string): void {
    this.#flows.get(id)?.wake();
    this.#flows.delete(id);
    this.#acksDue.delete(id);
  }

  async #writeStdin(id: string, flow: ProcessFlow, bytes: Buffer): Promise<void> {
    let left = bytes;
    while (left.length > 0) {
      while (flow.credit === 0 && !this.#isClosed && this.#flows.get(id) === flow) {
        await flow.creditChange();
      }
      left = await this.#inTurn(() => {
        if (this.#flows.get(id) !== flow) throw new RangeError('no such process');
        const piece = left.subarray(0, Math.min(flow.credit, GUEST_LIMITS.payloadMax));
        this.#send({ type: 'stdin', request: 0, id, offset: flow.stdinSent, bytes: piece });
        flow.sendStdin(piece.length);
        return left.subarray(piece.length);
      });
    }
  }

  #sendAcks(): void {
    for (const id of this.#acksDue) {
      const offset = this.#flows.get(id)?.takeAck();
      if (offset !== undefined && !this.#isClosed) {
        this.#send({ type: 'ack', request: 0, id, offset });
      }
    }
    this.#acksDue.clear();
  }

  #stage(bytes: Buffer): void {
    for (let at = 0; at < bytes.length; at += GUEST_LIMITS.payloadMax) {
      const piece = bytes.subarray(at, at + GUEST_LIMITS.payloadMax);
      this.#send({ type: 'stage', request: 0, bytes: piece });
    }
  }

  async #request(frame: Unnumbered<HostFrame>): Promise<void> {
    await this.#ask('done', TIMEOUTS_MS.request, frame);
  }

  #ask<T extends GuestFrame['type']>(
    type: T,
    timeoutMs: number,
    frame: Unnumbered<HostFrame>,
    apply: (answer: Answer<T>) => void = () => undefined,
    refused: () => void = () => undefined,
  ): Promise<Answer<T>> {
    if (this.#isClosed) throw new GuestUnavailableError('the channel is closed');
    const { request, answered } = this.#requests.expect(type, timeoutMs, apply, refused);
    this.#send({ ...frame, request });
    return answered;
  }

  #send(frame: HostFrame): void {
    if (this.#isClosed) throw new GuestUnavailableError('the channel is closed');
    this.#stream.write(encodeHostFrame(frame));
    if (this.#stream.writableLength > WAITING_BYTES_MAX) {
      this.#end(new GuestUnavailableError('the guest does not read'));
    }
  }

  /** What is long is sent one after the other, each when what was sent before has left. */
  #inTurn<T>(send: () => T): Promise<T> {
    const sent = this.#turn.then(async () => {
      await this.#drained();
      return send();
    });
    this.#turn = sent.catch(() => undefined);
    return sent;
  }

  async #drained(): Promise<void> {
    while (!this.#isClosed && this.#stream.writableNeedDrain) {
      const settled = new AbortController();
      const { signal } = settled;
      await Promise.race([
        once(this.#stream, 'drain', { signal }),
        once(this, 'closed', { signal }),
      ]).finally(() => settled.abort());
    }
    if (this.#isClosed) throw new GuestUnavailableError('the channel is closed');
  }

  async #page(
    after: number,
    apply: (records: GuestProcessRecord[], next: number) => void,
  ): Promise<{ records: GuestProcessRecord[]; next: number }> {
    let records: GuestProcessRecord[] = [];
    const answer = await this.#ask(
      'records',
      TIMEOUTS_MS.request,
      { type: 'list', after },
      (page) => {
        records = decodeProcessRecords(page.records);
        const isLast = page.next === 0;
        if (!isLast && (page.next <= after || page.next > GUEST_LIMITS.processesMax)) {
          throw new GuestProtocolError('pages of processes do not end');
        }
        apply(records, page.next);
      },
    );
    return { records, next: answer.next };
  }

  async #learnProcesses(): Promise<void> {
    const all = this.#listed;
    let after = 0;
    do {
      const { next } = await this.#page(after, (records, following) => {
        for (const record of records) this.#flows.set(record.id, ProcessFlow.ofRecord(record));
        all.push(...records);
        if (this.#flows.size !== all.length) throw new GuestProtocolError('process listed twice');
        this.#isListed = following === 0;
      });
      after = next;
    } while (after !== 0);
  }

  #pingRegularly(): void {
    this.#pinger = setInterval(() => {
      this.ping().catch((error: unknown) => this.#end(toError(error)));
    }, TIMEOUTS_MS.pingInterval);
    this.#pinger.unref();
  }

  #receive(chunk: Buffer): void {
    if (this.#isClosed) return;
    try {
      for (const stuffed of this.#splitter.push(chunk)) {
        if (!this.#isClosed) this.#handle(decodeGuestFrame(stuffed));
      }
    } catch (error) {
      this.#end(new GuestProtocolError('the guest broke the protocol', { cause: error }));
    }
  }

  #handle(frame: GuestFrame): void {
    switch (frame.type) {
      case 'output':
        return this.#handleOutput(frame);
      case 'exited':
        return this.#handleExit(frame);
      case 'taken':
        this.#flowOfGuest(frame.id)?.receiveTaken(frame.offset);
        return;
      case 'poweringOff':
        this.emit('poweringOff', frame.isRequested !== 0);
        return;
      case 'welcome':
        throw new GuestProtocolError('welcome out of turn');
      default:
        this.#requests.settle(frame);
    }
  }

  /** Until the list is whole, news may come of a process that it will tell of. */
  #flowOfGuest(id: string): ProcessFlow | undefined {
    const flow = this.#flows.get(id);
    if (flow === undefined && this.#isListed) throw new GuestProtocolError('unknown process');
    return flow;
  }

  #handleOutput({ id, stream, offset, bytes }: Answer<'output'>): void {
    const flow = this.#flowOfGuest(id);
    if (flow === undefined) throw new GuestProtocolError('output that nobody follows');
    checkStream(stream);
    flow.receiveOutput(offset, bytes.length);
    this.emit('output', { processId: id, stream: stream === 2 ? 2 : 1, offset, bytes });
  }

  #handleExit({ id, isSignal, status, end }: Answer<'exited'>): void {
    const flow = this.#flowOfGuest(id);
    if (flow === undefined) return;
    flow.receiveExit(end);
    this.#noteEnd(id, isSignal, status, end);
    this.emit('exited', {
      processId: id,
      exitCode: isSignal === 0 ? status : undefined,
      signal: isSignal === 0 ? undefined : status,
      end,
    });
  }

  #noteEnd(id: string, isSignal: number, status: number, end: number): void {
    const index = this.#listed.findIndex((record) => record.id === id);
    const record = this.#listed[index];
    if (record === undefined) return;
    const flags =
      record.flags | PROCESS_FLAGS.exited | (isSignal === 0 ? 0 : PROCESS_FLAGS.signalled);
    this.#listed[index] = { ...record, flags, status, end };
  }

  #end(error: Error | undefined): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    clearInterval(this.#pinger);
    this.#stream.destroy();
    this.#requests.failAll(error ?? new GuestUnavailableError('the channel was closed'));
    for (const flow of this.#flows.values()) flow.wake();
    this.emit('closed', error);
  }
}

type Unnumbered<T> = T extends unknown ? Omit<T, 'request'> : never;

function checkStream(stream: number): void {
  if (stream !== 1 && stream !== 2) throw new GuestProtocolError('no such stream');
}
