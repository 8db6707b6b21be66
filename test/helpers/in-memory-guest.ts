/*
 * A guest without a virtual machine: it speaks the protocol of real guests over a stream in memory
 * and understands the few commands that tests use. It lives as long as its machine, whoever
 * connects.
 */
import { randomUUID } from 'node:crypto';
import { duplexPair, type Duplex } from 'node:stream';
import { FrameSplitter } from '../../agent/machines/guest-link/frame-splitter.ts';
import {
  decodeHostFrame,
  encodeGuestFrame,
  GUEST_FAILURES,
  GUEST_PROTOCOL_VERSION,
  type GuestFrame,
  type HostFrame,
  PROCESS_FLAGS,
  processRecordBytes,
} from '../../agent/machines/guest-link/guest-protocol.ts';

/** A hook that the guest takes for a frame that it does not know. */
export const UNKNOWN_HOOK = 'unknown';
const SIGKILL = 9;
const SIGTERM = 15;
const FIRST_PID = 2;

type Files = Map<string, string>;

interface InMemoryExit {
  readonly flags: number;
  readonly status: number;
  readonly endedAt: number;
}

export interface InMemoryProcess {
  readonly id: string;
  readonly command: string;
  output: string;
  isFollowed: boolean;
  readonly isAttachable: boolean;
  /** The process echoes its input until that ends. */
  isReading: boolean;
  stdinReceived: number;
  exit: InMemoryExit | undefined;
}

/** The guest's state in a checkpoint. */
export interface GuestMemory {
  readonly instance: string;
  readonly settings: ReadonlyMap<string, string>;
  readonly memory: ReadonlyMap<string, string>;
  readonly processes: readonly InMemoryProcess[];
}

interface Surroundings {
  /** Everything outside of /run; a write goes to its machine's own layer. */
  readonly disk: {
    read(path: string): string | undefined;
    write(path: string, text: string): void;
  };
  /** A command is about to run for the first time. */
  readonly started: (processId: string) => void;
  /** The guest has come to its end by itself. */
  readonly ended: (how: 'guest_shutdown' | 'guest_panic') => void;
}

export class InMemoryGuest {
  readonly processes = new Map<string, InMemoryProcess>();
  /** Files that a boot loses and a checkpoint keeps. */
  readonly memory: Files = new Map();
  /** Settings that the guest was configured with: file names and variables with their contents. */
  readonly settings: Files = new Map();
  isFrozen = false;
  readonly #surroundings: Surroundings;
  #instance: string = randomUUID();
  #stream: Duplex | undefined;
  #staged = Buffer.alloc(0);
  #isSilent = false;
  #isPoweringOff = false;

  constructor(surroundings: Surroundings, from?: GuestMemory) {
    this.#surroundings = surroundings;
    if (from === undefined) return;
    this.#instance = from.instance;
    for (const [name, value] of from.settings) this.settings.set(name, value);
    for (const [path, text] of from.memory) this.memory.set(path, text);
    for (const process of from.processes) this.processes.set(process.id, { ...process });
    this.isFrozen = true;
  }

  get running(): InMemoryProcess[] {
    return [...this.processes.values()].filter(({ exit }) => exit === undefined);
  }

  get isSilent(): boolean {
    return this.#isSilent;
  }

  /** A silent guest answers what it was asked as soon as it is not silent any more. */
  set isSilent(isSilent: boolean) {
    this.#isSilent = isSilent;
    if (isSilent) this.#stream?.pause();
    else this.#stream?.resume();
  }

  remember(): GuestMemory {
    return {
      instance: this.#instance,
      settings: new Map(this.settings),
      memory: new Map(this.memory),
      processes: [...this.processes.values()].map((process) => ({ ...process })),
    };
  }

  /** The host's end of a new connection; a former one breaks. */
  connect(): Duplex {
    this.disconnect();
    const [theirs, ours] = duplexPair();
    const splitter = new FrameSplitter();
    ours.on('error', () => undefined);
    ours.on('close', () => theirs.destroy());
    ours.on('data', (chunk: Buffer) => {
      for (const stuffed of splitter.push(chunk)) {
        if (stuffed.length > 0 && this.#stream === ours) this.#handle(decodeHostFrame(stuffed));
      }
    });
    if (this.#isSilent) ours.pause();
    this.#stream = ours;
    this.#staged = Buffer.alloc(0);
    // Every host says anew what it follows.
    for (const process of this.processes.values()) process.isFollowed = false;
    return theirs;
  }

  disconnect(): void {
    this.#stream?.destroy();
    this.#stream = undefined;
  }

  /** Ends a process that runs. */
  end(process: InMemoryProcess, status: number, flags = 0): void {
    if (process.exit !== undefined) return;
    process.exit = { flags, status, endedAt: Date.now() };
    const { id, output } = process;
    const exit = { id, flags, status, end: output.length, sinceEndMs: 0 };
    this.#say({ type: 'exited', request: 0, ...exit });
  }

  #say(frame: GuestFrame): void {
    if (this.#stream?.destroyed === false) this.#stream.write(encodeGuestFrame(frame));
  }

  #handle(frame: HostFrame): void {
    const { request } = frame;
    switch (frame.type) {
      case 'hello':
        return this.#say({
          ...{ type: 'welcome', request: 0, version: GUEST_PROTOCOL_VERSION },
          ...{ epoch: frame.epoch, instance: this.#instance },
        });
      case 'list':
        return this.#say({ type: 'records', request, next: 0, records: this.#records() });
      case 'readClock':
        return this.#say({ type: 'time', request, realUs: Date.now() * 1000, monotonicUs: 0 });
      case 'hook':
        return this.#hook(frame);
      case 'stage':
        this.#staged = Buffer.concat([this.#staged, frame.bytes]);
        return;
      case 'stdin':
        return this.#read(frame);
      case 'ack':
        return;
      case 'start':
        return this.#start(frame);
      case 'follow':
        return this.#follow(frame);
      default:
        this.#obey(frame);
        this.#say({ type: 'done', request });
        if (frame.type === 'shutdown') this.shutDown(true);
    }
  }

  /** Carries out a request that is answered by `done`. */
  #obey(frame: HostFrame): void {
    if (frame.type === 'configure') this.#configure(frame);
    else if (frame.type === 'freeze') this.isFrozen = true;
    else if (frame.type === 'thaw') this.isFrozen = false;
    else if (frame.type === 'forget') this.processes.delete(frame.id);
    else if (frame.type === 'unfollow') {
      const process = this.processes.get(frame.id);
      if (process !== undefined) process.isFollowed = false;
    } else if (frame.type === 'signal') {
      const process = this.processes.get(frame.id);
      if (process !== undefined) this.end(process, frame.number, PROCESS_FLAGS.signalled);
    } else if (frame.type === 'kill') {
      const process = this.processes.get(frame.id);
      const flags = PROCESS_FLAGS.signalled | PROCESS_FLAGS.killed;
      if (process !== undefined) this.end(process, SIGKILL, flags);
    } else if (frame.type === 'closeStdin') {
      const process = this.processes.get(frame.id);
      if (process?.isReading === true) this.end(process, 0);
    }
  }

  #configure(frame: Extract<HostFrame, { type: 'configure' }>): void {
    const environment = this.#takeStaged(frame.environmentBytes).split('\0').filter(Boolean);
    for (const name of this.settings.keys()) if (name.startsWith('$')) this.settings.delete(name);
    for (const entry of environment) {
      const [name = ''] = entry.split('=', 1);
      this.settings.set(`$${name}`, entry.slice(name.length + 1));
    }
    this.settings.set('hostname', frame.hostname);
    this.settings.set('/etc/machine-id', frame.machineId.replaceAll('-', ''));
    this.settings.set('/proc/sys/kernel/random/boot_id', frame.bootId);
    this.isFrozen = false;
  }

  #start(frame: Extract<HostFrame, { type: 'start' }>): void {
    const { request, id } = frame;
    const command = this.#takeStaged(frame.commandBytes).slice(0, -1);
    this.#takeStaged(frame.environmentBytes + frame.directoryBytes + frame.userBytes);
    const refuse = (code: number): void =>
      this.#say({ type: 'failed', request, code, errno: 0, step: '' });
    if (this.isFrozen) return refuse(GUEST_FAILURES.frozen);
    if (this.processes.has(id)) return refuse(GUEST_FAILURES.processExists);
    const isFollowed = (frame.flags & PROCESS_FLAGS.followed) !== 0;
    const isAttachable = (frame.flags & PROCESS_FLAGS.session) !== 0;
    const process: InMemoryProcess = {
      ...{ id, command, isFollowed, isAttachable, output: '', exit: undefined },
      ...{ isReading: false, stdinReceived: 0 },
    };
    this.processes.set(id, process);
    this.#surroundings.started(id);
    this.#say({ type: 'started', request, pid: FIRST_PID + this.processes.size });
    this.#run(process, command.split(/; */u));
  }

  /** A guest of a version without hooks takes the frame for one about a process. */
  #hook({ request, command }: Extract<HostFrame, { type: 'hook' }>): void {
    const code = GUEST_FAILURES.unknownProcess;
    if (command === UNKNOWN_HOOK) {
      return this.#say({ type: 'failed', request, code, errno: 0, step: '' });
    }
    this.#say({ type: 'hooked', request, flags: 0, status: 0 });
  }

  #takeStaged(length: number): string {
    const taken = this.#staged.toString('utf8', 0, length);
    this.#staged = this.#staged.subarray(length);
    return taken;
  }

  #follow({ request, id, offset }: Extract<HostFrame, { type: 'follow' }>): void {
    const process = this.processes.get(id);
    if (process === undefined) {
      const code = GUEST_FAILURES.unknownProcess;
      return this.#say({ type: 'failed', request, code, errno: 0, step: '' });
    }
    process.isFollowed = true;
    this.#say({ type: 'followed', request, offset });
    this.#tellOutput(process, offset);
  }

  #tellOutput({ id, output, isFollowed }: InMemoryProcess, offset: number): void {
    const bytes = Buffer.from(output.slice(offset));
    if (!isFollowed || bytes.length === 0) return;
    this.#say({ type: 'output', request: 0, id, stream: 1, offset, bytes });
  }

  #records(): Buffer {
    const records = [...this.processes.values()].map((process) => {
      const { id, output, isFollowed, isAttachable, stdinReceived, exit } = process;
      const record = Buffer.alloc(processRecordBytes);
      Buffer.from(id.replaceAll('-', ''), 'hex').copy(record);
      record.writeUInt32LE(FIRST_PID, 16);
      const ended = exit === undefined ? 0 : PROCESS_FLAGS.exited | exit.flags;
      const session = isAttachable ? PROCESS_FLAGS.session : 0;
      record.writeUInt8((isFollowed ? PROCESS_FLAGS.followed : 0) | session | ended, 20);
      record.writeUInt8(exit?.status ?? 0, 21);
      record.writeBigUInt64LE(BigInt(output.length), 36);
      record.writeBigUInt64LE(BigInt(stdinReceived), 52);
      record.writeBigUInt64LE(BigInt(stdinReceived), 60); // All of it is taken at once.
      if (exit !== undefined) {
        record.writeBigUInt64LE(BigInt(Math.max(0, Date.now() - exit.endedAt)), 68);
      }
      return record;
    });
    return Buffer.concat(records);
  }

  /** Runs the parts of a command one after the other; the shell's own rules do not matter here. */
  #run(process: InMemoryProcess, parts: readonly string[]): void {
    const [part, ...rest] = parts;
    if (process.exit !== undefined) return;
    if (part === undefined) return this.end(process, 0);
    const seconds = /^(?:exec )?sleep (\S+)$/u.exec(part)?.[1];
    if (seconds === undefined) {
      if (this.#runPart(process, part)) this.#run(process, rest);
    } else if (seconds !== 'infinity') {
      setTimeout(() => this.#run(process, rest), Number(seconds) * 1000).unref();
    }
  }

  /** @returns whether what follows is to run */
  #runPart(process: InMemoryProcess, part: string): boolean {
    if (part === 'kill -TERM 1') this.shutDown(false);
    else if (part === 'echo c > /proc/sysrq-trigger') this.#surroundings.ended('guest_panic');
    else if (part.startsWith('sha256sum ')) return this.#cat(process, [part.slice(10)]);
    else if (part.startsWith('head -c '))
      this.#echo(process, `${randomUUID()} > ${part.split(' ').at(-1)}`);
    else if (part === 'uname -n') this.#print(process, this.settings.get('hostname') ?? '');
    else if (part === 'pwd') this.#print(process, '/');
    else if (part.startsWith('exit ')) this.end(process, Number(part.slice(5)));
    else if (part === 'cat') process.isReading = true;
    else if (part.startsWith('cat ')) return this.#cat(process, part.slice(4).split(' '));
    else if (part.startsWith('echo ')) this.#echo(process, part.slice(5));
    else if (part !== 'sync' && part !== 'true') this.end(process, 127); // No such command.
    return process.exit === undefined && !process.isReading;
  }

  #cat(process: InMemoryProcess, paths: readonly string[]): boolean {
    for (const path of paths) {
      const text = this.settings.get(path) ?? this.#files(path).read(path);
      if (text === undefined) this.end(process, 1);
      else this.#print(process, text);
    }
    return process.exit === undefined;
  }

  #echo(process: InMemoryProcess, text: string): void {
    const [, shown = '', path] = /^(.*?)(?: > (\S+))?$/u.exec(text) ?? [];
    const value = shown.startsWith('$') ? (this.settings.get(shown) ?? '') : shown;
    if (path === undefined) this.#print(process, value);
    else this.#files(path).write(path, value);
  }

  #files(path: string): Surroundings['disk'] {
    if (!path.startsWith('/run/')) return this.#surroundings.disk;
    return {
      read: () => this.memory.get(path),
      write: (_, text) => void this.memory.set(path, text),
    };
  }

  #read({ id, offset, bytes }: Extract<HostFrame, { type: 'stdin' }>): void {
    const process = this.processes.get(id);
    if (process === undefined || offset > process.stdinReceived) return;
    const fresh = bytes.subarray(process.stdinReceived - offset);
    if (fresh.length === 0) return;
    process.stdinReceived += fresh.length;
    this.#say({ type: 'taken', request: 0, id, offset: process.stdinReceived });
    if (process.isReading) this.#put(process, fresh.toString('utf8'));
  }

  #print(process: InMemoryProcess, line: string): void {
    this.#put(process, `${line}\n`);
  }

  #put(process: InMemoryProcess, text: string): void {
    const offset = process.output.length;
    process.output += text;
    this.#tellOutput(process, offset);
  }

  shutDown(isRequested: boolean): void {
    const frame = { request: 0, isRequested: Number(isRequested) };
    if (!this.#isPoweringOff) this.#say({ type: 'poweringOff', ...frame });
    this.#isPoweringOff = true;
    for (const process of this.running) this.end(process, SIGTERM, PROCESS_FLAGS.signalled);
    this.#surroundings.ended('guest_shutdown');
  }
}
