/*
 * The guest agent as an ordinary process: PID 1 of namespaces of its own, with a socket in the
 * place of the virtual machine's port. `GuestPort` is what lies between the two there: connections
 * of the host come and go, and what is under way when one goes is cut at any byte.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { EventEmitter, once } from 'node:events';
import { readdir, readFile } from 'node:fs/promises';
import { type Duplex, duplexPair } from 'node:stream';
import { GuestChannel } from '../../agent/machines/guest-link/guest-channel.ts';
import type { ProcessEnd } from '../../agent/machines/guest-link/process-end.ts';
import type {
  GuestProcessSpec,
  GuestSettings,
} from '../../agent/machines/guest-link/guest-types.ts';
import { run } from '../../agent/system/spawn.ts';
import { isFull } from './full.ts';

const directory = new URL('../../agent/guest', import.meta.url).pathname;

export interface GuestBuild {
  readonly name: string;
  /**
   * Whether it runs under qemu-user, which knows neither openat2 nor children that share memory.
   */
  readonly isEmulated: boolean;
  /** The command that runs it: its path, behind the emulator's where it needs one. */
  command(): Promise<readonly string[]>;
}

const built = new Map<string, Promise<string>>();
async function make(target: string): Promise<string> {
  await run('make', ['-s', '-C', directory, target], { timeoutMs: 120_000 });
  return `${directory}/${target}`;
}

function makeOnce(target: string): Promise<string> {
  const path = built.get(target) ?? make(target);
  built.set(target, path);
  return path;
}

/**
 * The plain build. With BERTH_TEST_FULL=1 also one that reports every wrong memory access, and the
 * one of arm64, whose system calls qemu-user translates; the commands that it starts are the
 * host's.
 */
export const guestBuilds: readonly GuestBuild[] = [
  { name: 'guest', isEmulated: false, command: async () => [`${directory}/build/guest`] },
  ...(isFull
    ? [
        {
          name: 'sanitized guest',
          isEmulated: false,
          command: async () => [await makeOnce('build/guest-sanitized')],
        },
        {
          name: 'arm64 guest',
          isEmulated: true,
          command: async () => ['qemu-aarch64', await makeOnce('build/guest-arm64')],
        },
      ]
    : []),
];

/** Those that the kernel runs itself, with each of its system calls. */
export const nativeGuestBuilds = guestBuilds.filter(({ isEmulated }) => !isEmulated);

/*
 * The agent writes to /etc and /run and mounts at /mnt; here these are the namespace's own. The
 * shell makes sure that the agent kills nobody outside.
 */
const PREPARE = [
  'test $$ = 1 || exit 99',
  'mount -t tmpfs none /run && mkdir /run/changed /run/work',
  'mount -t overlay -o lowerdir=/etc,upperdir=/run/changed,workdir=/run/work none /etc || exit 99',
];

interface GuestOptions {
  readonly build?: GuestBuild | undefined;
  readonly args?: readonly string[];
  /** Shell lines to run inside the agent's namespaces before it starts. */
  readonly prepare?: readonly string[];
}

/** A running guest agent and the socket to it. */
export class TestGuest implements AsyncDisposable {
  readonly socket: Duplex;
  readonly exited: Promise<number | null>;
  readonly #child: ChildProcess;

  private constructor(child: ChildProcess) {
    this.#child = child;
    this.socket = child.stdio[3] as Duplex;
    this.socket.on('error', () => undefined); // The agent may end before it has read everything.
    this.exited = once(child, 'exit').then(([code]) => code as number | null);
  }

  static async start({ build, args = [], prepare = [] }: GuestOptions = {}): Promise<TestGuest> {
    const namespaces = ['--pid', '--uts', '--ipc', '--mount', '--net', '--fork', '--mount-proc'];
    const command = (await (build ?? guestBuilds[0])?.command()) ?? [];
    const script = [...PREPARE, ...prepare, 'exec "$0" "$@"'].join('\n');
    const child = spawn(
      'unshare',
      [...namespaces, '--kill-child', 'sh', '-c', script, ...command, '--socket', '3', ...args],
      {
        stdio: ['ignore', 'ignore', 'inherit', 'pipe'],
        env: {
          PATH: process.env['PATH'],
          ASAN_OPTIONS: 'detect_leaks=0:exitcode=99',
          UBSAN_OPTIONS: 'exitcode=99',
        },
      },
    );
    return new TestGuest(child);
  }

  /** The agent's process as the host sees it. */
  async pid(): Promise<number> {
    const children = await readFile(
      `/proc/${this.#child.pid}/task/${this.#child.pid}/children`,
      'utf8',
    );
    return Number(children.trim().split(' ')[0]);
  }

  /** A figure of the agent's own memory in bytes: `VmRSS`, `VmHWM` … */
  async memoryBytes(name: string): Promise<number> {
    const status = await readFile(`/proc/${await this.pid()}/status`, 'utf8');
    return Number(new RegExp(`^${name}:\\s+(\\d+) kB$`, 'mu').exec(status)?.[1]) * 1024;
  }

  async openFiles(): Promise<number> {
    return (await readdir(`/proc/${await this.pid()}/fd`)).length;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.socket.destroy();
    await this.exited;
  }
}

/** The stand-in for a virtual machine's port, to which hosts connect one after the other. */
export class GuestPort {
  readonly #guest: Duplex;
  #connection: { theirs: Duplex; ours: Duplex } | undefined;

  constructor(guest: Duplex) {
    this.#guest = guest;
    guest.on('data', (chunk: Buffer) => {
      const host = this.#connection?.ours;
      if (host === undefined || host.destroyed) return; // No host is connected: the bytes are lost.
      if (!host.write(chunk) && !host.destroyed) {
        guest.pause();
        host.once('drain', () => guest.resume());
      }
    });
  }

  /** The host's end of a new connection. With a limit, the guest receives only its first bytes. */
  connect(toGuestBytesMax = Infinity): Duplex {
    this.cut();
    const [theirs, ours] = duplexPair();
    let left = toGuestBytesMax;
    ours.on('data', (chunk: Buffer) => {
      const passed = chunk.subarray(0, Math.min(left, chunk.length));
      left -= passed.length;
      if (passed.length > 0) this.#guest.write(passed);
    });
    ours.on('error', () => undefined);
    theirs.on('close', () => {
      if (this.#connection?.theirs === theirs) this.cut();
    });
    this.#connection = { theirs, ours };
    return theirs;
  }

  /** Cuts the present connection. Bytes under way are lost. */
  cut(): void {
    const connection = this.#connection;
    this.#connection = undefined;
    connection?.ours.destroy();
    connection?.theirs.destroy();
    this.#guest.resume();
  }
}

export const guestSettings = (changes: Partial<GuestSettings> = {}): GuestSettings => ({
  hostname: 'guest-under-test',
  machineId: randomUUID(),
  bootId: randomUUID(),
  network: undefined,
  rootDisk: undefined,
  directory: '/',
  user: '',
  environment: {},
  ...changes,
});

export const processSpec = (
  command: string,
  changes: Partial<GuestProcessSpec> = {},
): GuestProcessSpec => ({
  id: randomUUID(),
  command,
  environment: {},
  directory: '',
  user: '',
  terminal: undefined,
  stdin: false,
  isFollowed: true,
  isAttachable: false,
  timeoutMs: undefined,
  ...changes,
});

/** A guest agent that is configured, with a channel to it. */
export async function startConfigured(
  options: GuestOptions & { readonly settings?: Partial<GuestSettings> } = {},
): Promise<{ guest: TestGuest; channel: GuestChannel } & AsyncDisposable> {
  const guest = await TestGuest.start(options);
  const { channel } = await GuestChannel.open(guest.socket);
  channel.setMaxListeners(0); // A test may watch many processes, with a listener each.
  await channel.configure(guestSettings(options.settings));
  return {
    guest,
    channel,
    async [Symbol.asyncDispose]() {
      channel.close();
      await guest[Symbol.asyncDispose]();
    },
  };
}

/** A test that waits for longer would end the run of all. */
const SILENT_MS_MAX = 120_000;

/** Collects the channel's messages about one process. */
export class Collected extends EventEmitter {
  readonly pieces: { stream: number; offset: number; bytes: Buffer }[] = [];
  exit: ProcessEnd | undefined;
  cursor = 0;
  readonly #id: string;
  readonly #isAcknowledging: boolean;

  constructor(channel: GuestChannel, id: string, options: { acknowledge?: boolean } = {}) {
    super();
    this.#id = id;
    this.#isAcknowledging = options.acknowledge ?? true;
    this.listen(channel);
  }

  listen(channel: GuestChannel): void {
    channel.on('output', ({ processId, stream, offset, bytes }) => {
      if (processId !== this.#id) return;
      this.pieces.push({ stream, offset, bytes: Buffer.from(bytes) });
      this.cursor = offset + bytes.length;
      if (this.#isAcknowledging) channel.acknowledge(processId, this.cursor);
      this.emit('change');
    });
    channel.on('exited', (exit) => {
      if (exit.processId !== this.#id) return;
      this.exit = exit;
      this.emit('change');
    });
    channel.on('closed', () => this.emit('change'));
  }

  /**
   * Resolves when the condition holds; it is checked after every message.
   * @throws AbortError when no message comes for two minutes
   */
  async until(holds: () => boolean): Promise<void> {
    while (!holds()) await once(this, 'change', { signal: AbortSignal.timeout(SILENT_MS_MAX) });
  }

  /** All output up to the process's end. */
  async ended(): Promise<this> {
    await this.until(() => this.exit !== undefined && this.cursor >= this.exit.end);
    return this;
  }

  of(stream: number): Buffer {
    return Buffer.concat(this.pieces.filter((each) => each.stream === stream).map((p) => p.bytes));
  }

  get text(): string {
    return Buffer.concat(this.pieces.map((piece) => piece.bytes)).toString();
  }
}

/** Starts a process and collects all its output. */
export async function collect(channel: GuestChannel, spec: GuestProcessSpec): Promise<Collected> {
  const collected = new Collected(channel, spec.id);
  await channel.start(spec);
  return collected.ended();
}
