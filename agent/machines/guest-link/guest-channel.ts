import { randomBytes } from 'node:crypto';
import { EventEmitter } from 'node:events';
import type { Duplex } from 'node:stream';
import { toError } from '../../../shared/errors.ts';
import { GuestClock } from './guest-clock.ts';
import { GUEST_TIMEOUTS_MS, GuestConnection } from './guest-connection.ts';
import { GuestProtocolError, GuestUnavailableError } from './guest-errors.ts';
import { GuestProcesses } from './guest-processes.ts';
import {
  GUEST_PROTOCOL_VERSION,
  PROCESS_FLAGS,
  type GuestFrame,
  type GuestProcessRecord,
} from './guest-protocol.ts';
import type { Answer } from './guest-requests.ts';
import { MACHINE_LIMITS } from '../limits.ts';
import { SCHEMA_LIMITS } from '../../../shared/schemas/limits.ts';
import type {
  GuestDisk,
  GuestEvents,
  GuestHookEnd,
  GuestProcessSpec,
  GuestSettings,
} from './guest-types.ts';
import { openEpoch } from './open-epoch.ts';

const ENTROPY_BYTES = 64;

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
 * The host's end of the channel to one guest (guest-protocol.ts). Every frame is checked; the
 * first one that a sound guest agent cannot have sent closes the channel.
 */
export class GuestChannel extends EventEmitter<GuestEvents> {
  /** Drawn by the guest when it boots: with another one, all of its processes are new. */
  readonly instance: string;
  readonly #connection: GuestConnection;
  readonly #clock: GuestClock;
  readonly #processes: GuestProcesses;
  #isPoweringOff = false;

  private constructor(stream: Duplex, instance: string) {
    super();
    this.instance = instance;
    this.#connection = new GuestConnection(stream, {
      news: (frame) => this.#receive(frame),
      closed: (error) => {
        this.#processes.wakeAll();
        this.emit('closed', error);
      },
    });
    this.#clock = new GuestClock(this.#connection);
    this.#processes = new GuestProcesses(this.#connection, {
      output: (output) => this.emit('output', output),
      exited: (exit) => this.emit('exited', exit),
      taken: (id, offset) => this.emit('taken', id, offset),
      evicted: (id) => this.emit('evicted', id),
    });
  }

  /**
   * Begins a new epoch on a stream that may still hold bytes of earlier ones, and asks the guest
   * for its processes. From here on the channel owns the stream. Exits that arrive before the
   * caller can listen are included in `processes`.
   * @throws GuestUnavailableError when the guest does not answer in time
   * @throws GuestProtocolError when it answers with something else
   */
  static async open(
    stream: Duplex,
    options: { timeoutMs?: number } = {},
  ): Promise<{ channel: GuestChannel; processes: GuestProcessRecord[] }> {
    const { welcome, rest } = await openEpoch(
      stream,
      options.timeoutMs ?? GUEST_TIMEOUTS_MS.request,
    );
    if (welcome.version !== GUEST_PROTOCOL_VERSION) {
      stream.destroy();
      throw new GuestProtocolError('guest speaks another version');
    }
    const channel = new GuestChannel(stream, welcome.instance);
    const connection = channel.#connection;
    connection.receive(rest);
    try {
      const processes = await channel.#processes.learn();
      // The bytes that followed the list may have closed the connection while nobody listened yet.
      if (connection.isClosed) throw new GuestUnavailableError('the guest hung up');
      connection.askRegularly(() => channel.checkClock());
      return { channel, processes };
    } catch (error) {
      connection.end(toError(error));
      throw error;
    }
  }

  /**
   * Sets identity, clock, entropy, network and root disk. Resolves when all of it has taken effect.
   */
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
      user: settings.user,
      ...addresses,
      networkInterface,
      rootDevice: rootDisk?.device ?? '',
      rootType: rootDisk?.type ?? '',
      environmentBytes: environment.length,
    } as const;
    const { answered } = await this.#connection.inTurn(() => {
      this.#connection.stage(environment);
      const fresh = { entropy: randomBytes(ENTROPY_BYTES), clockUs: Date.now() * 1000 };
      const expected = { timeoutMs: GUEST_TIMEOUTS_MS.configure };
      return { answered: this.#connection.ask('done', { ...frame, ...fresh }, expected) };
    });
    await answered;
  }

  /**
   * Starts a process. Resolves with the shell's pid in the guest once the shell has been executed.
   * @param started called then, before any event of the process
   */
  async start(spec: GuestProcessSpec, started: () => void = () => undefined): Promise<number> {
    const command = terminated(spec.command);
    const environment = environmentBlock(spec.environment);
    const directory = terminated(spec.directory);
    const user = terminated(spec.user);
    const flags =
      (spec.terminal === undefined ? 0 : PROCESS_FLAGS.terminal) |
      (spec.stdin ? PROCESS_FLAGS.stdin : 0) |
      (spec.isFollowed ? PROCESS_FLAGS.followed : 0) |
      (spec.isAttachable ? PROCESS_FLAGS.session : 0);
    const frame = {
      type: 'start',
      id: spec.id,
      flags,
      columns: spec.terminal?.columns ?? 0,
      rows: spec.terminal?.rows ?? 0,
      timeoutMs: spec.timeoutMs ?? 0,
      commandBytes: command.length,
      environmentBytes: environment.length,
      directoryBytes: directory.length,
      userBytes: user.length,
    } as const;
    const { answered } = await this.#connection.inTurn(() => {
      this.#processes.add(spec.id, spec);
      this.#connection.stage(Buffer.concat([command, environment, directory, user]));
      const refused = (): void => this.#processes.drop(spec.id);
      const expected = { timeoutMs: GUEST_TIMEOUTS_MS.start, apply: started, refused };
      return { answered: this.#connection.ask('started', frame, expected) };
    });
    return (await answered).pid;
  }

  /**
   * Starts an operation on files (file-protocol.ts), with input and output as of a process that is
   * followed. It ends with the channel.
   * @throws GuestFailure `unknownProcess` from a guest that is older than these
   */
  async startFiles(id: string, operation: Buffer): Promise<void> {
    const { answered } = await this.#connection.inTurn(() => {
      this.#processes.add(id, { isFollowed: true, isAttachable: true });
      const refused = (): void => this.#processes.drop(id);
      const expected = { timeoutMs: GUEST_TIMEOUTS_MS.start, refused };
      return {
        answered: this.#connection.ask('started', { type: 'files', id, operation }, expected),
      };
    });
    await answered;
  }

  /**
   * How many bytes of input the guest was sent; after a new connection, how many it has received.
   */
  stdinSent(id: string): number {
    return this.#processes.flow(id).stdinSent;
  }

  /**
   * Sends input. Resolves when the guest has accepted it; calls for one process keep their order.
   */
  writeStdin(id: string, bytes: Buffer): Promise<void> {
    return this.#processes.writeStdin(id, bytes);
  }

  /** End of file for the process, after everything that was written before. */
  async closeStdin(id: string): Promise<void> {
    const flow = this.#processes.flow(id);
    await flow.stdinWrites.idle;
    await this.#connection.request({ type: 'closeStdin', id, offset: flow.stdinSent });
  }

  /** @throws GuestFailure `unsupported` when the process has no terminal */
  async resize(id: string, columns: number, rows: number): Promise<void> {
    await this.#connection.request({ type: 'resize', id, columns, rows });
  }

  /**
   * Ends the process and its group by SIGKILL; its exit then says `killed`. Nothing happens when it
   * has ended.
   */
  async kill(id: string): Promise<void> {
    await this.#connection.request({ type: 'kill', id });
  }

  /** Signals the process's group. Nothing happens when the process has ended. */
  async signal(id: string, number: number): Promise<void> {
    await this.#connection.request({ type: 'signal', id, number });
  }

  /**
   * Asks for output from the offset on, or from the oldest byte kept; resolves with where it
   * begins. From now on, until the host leaves, the process waits rather than lose output that was
   * not acknowledged. A second call begins again at its own offset.
   * @param followed called with where output begins, before the first of it comes
   */
  async follow(
    id: string,
    offset: number,
    followed: (from: number) => void = () => undefined,
  ): Promise<number> {
    const flow = this.#processes.flow(id);
    const apply = (answer: Answer<'followed'>): void => {
      flow.followAnswered();
      if (answer.offset < offset) throw new GuestProtocolError('output begins too early');
      flow.follow(answer.offset);
      followed(answer.offset);
    };
    const frame = { type: 'follow', id, offset } as const;
    const refused = (): void => flow.followAnswered();
    const answered = this.#connection.ask('followed', frame, { apply, refused });
    flow.askToFollow();
    return (await answered).offset;
  }

  /**
   * Stops the output: the guest keeps the newest of it, and the process never waits for a reader.
   */
  async unfollow(id: string): Promise<void> {
    const flow = this.#processes.flow(id);
    const apply = (): void => flow.unfollow();
    await this.#connection.ask('done', { type: 'unfollow', id }, { apply });
  }

  /** Acknowledges all output before the offset. The guest sends no more than a window beyond it. */
  acknowledge(id: string, offset: number): void {
    this.#processes.acknowledge(id, offset);
  }

  /** Drops what the guest has kept of a process that has ended. */
  async forget(id: string): Promise<void> {
    this.#processes.flow(id);
    const apply = (): void => this.#processes.drop(id);
    await this.#connection.ask('done', { type: 'forget', id }, { apply });
  }

  /** See {@link GuestProcesses.hasRoomBeside}. */
  hasRoomBeside(starting: ReadonlySet<string>): boolean {
    return this.#processes.hasRoomBeside(starting);
  }

  /** Every process that the guest knows. */
  async list(): Promise<GuestProcessRecord[]> {
    return this.#processes.list();
  }

  async stats(): Promise<Omit<Answer<'figures'>, 'type' | 'request'>> {
    return this.#connection.ask('figures', { type: 'stats' });
  }

  /** Resolves when the guest answers. @throws GuestUnavailableError when no answer comes in time */
  async ping(timeoutMs: number = GUEST_TIMEOUTS_MS.request): Promise<void> {
    await this.#connection.ask('done', { type: 'ping' }, { timeoutMs });
  }

  /** Resolves when no process runs and the disks are written. A freeze that fails is undone. */
  async freeze(timeoutMs: number): Promise<void> {
    const patienceMs = timeoutMs + GUEST_TIMEOUTS_MS.beyondFreeze;
    await this.#connection.ask('done', { type: 'freeze', timeoutMs }, { timeoutMs: patienceMs });
  }

  /**
   * Gives the host back what deleted files have left on the root disk.
   * @param budgetMs limits the trim itself; writing what is pending comes before it
   * @throws GuestFailure when the guest cannot, as those of before; GuestUnavailableError when it
   *   has not answered after `timeoutMs`
   */
  async trim(budgetMs: number, timeoutMs: number): Promise<void> {
    await this.#connection.ask('done', { type: 'trim', budgetMs }, { timeoutMs });
  }

  /** Lets processes continue, once the guest's clock is right. */
  async thaw(): Promise<void> {
    await this.checkClock();
    await this.#connection.request({ type: 'thaw' });
  }

  /**
   * Resolves when the guest's clock is right. The channel does this regularly, and before a thaw.
   * @throws GuestUnavailableError when the guest does not answer in time
   */
  checkClock(): Promise<void> {
    return this.#clock.check();
  }

  /**
   * Runs a shell command in a frozen guest, as the user of the settings, and resolves when it has
   * ended. After its time the guest kills it, with all that it started.
   * @throws GuestFailure when the shell could not be executed, or the guest is older than hooks
   */
  async runHook(
    command: string,
    timeoutMs: number = SCHEMA_LIMITS.copyHookMsMax,
  ): Promise<GuestHookEnd> {
    const expected = { timeoutMs: timeoutMs + GUEST_TIMEOUTS_MS.beyondHook };
    const frame = { type: 'hook', timeoutMs, command } as const;
    const { flags, status } = await this.#connection.ask('hooked', frame, expected);
    const isSignalled = (flags & PROCESS_FLAGS.signalled) !== 0;
    return {
      exitCode: isSignalled ? undefined : status,
      signal: isSignalled ? status : undefined,
      isTimedOut: (flags & PROCESS_FLAGS.timedOut) !== 0,
    };
  }

  /** Mounts a disk that a server at this address exports; idempotent. */
  async mount(disk: GuestDisk): Promise<void> {
    const { address: server, name, path, isReadOnly } = disk;
    const frame = { type: 'mount', server, isReadOnly: Number(isReadOnly), export: name, path };
    await this.#connection.ask('done', frame as { type: 'mount' } & typeof frame, {
      timeoutMs: MACHINE_LIMITS.guestMountMsMax,
    });
  }

  /**
   * Has a frozen guest ask the server of its disks for all locks that it had. Resolves when it has,
   * or has waited for long enough: the others are lost then.
   * @throws GuestFailure when the guest is older than this, and has lost all of them
   */
  async recoverLocks(): Promise<void> {
    await this.#connection.request({ type: 'recoverLocks' });
  }

  /** Resolves when the guest has begun to end. */
  async shutdown(graceMs: number): Promise<void> {
    await this.#connection.request({ type: 'shutdown', graceMs });
  }

  /** Closes the channel. Processes run on, and the next channel lists them. */
  close(): void {
    this.#connection.end(undefined);
  }

  #receive(frame: GuestFrame): void {
    switch (frame.type) {
      case 'output':
        return this.#processes.receiveOutput(frame);
      case 'exited':
        return this.#processes.receiveExit(frame);
      case 'taken':
        return this.#processes.receiveTaken(frame);
      case 'evicted':
        return this.#processes.receiveEvicted(frame);
      case 'poweringOff':
        // A guest that powers off does not come back from it.
        if (this.#isPoweringOff) throw new GuestProtocolError('guest powers off twice');
        this.#isPoweringOff = true;
        this.emit('poweringOff', frame.isRequested !== 0);
        return;
      default:
        throw new GuestProtocolError(`${frame.type} out of turn`);
    }
  }
}
