import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, readFile } from 'node:fs/promises';
import { connect } from 'node:net';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { text } from 'node:stream/consumers';
import { promisify } from 'node:util';
import { freePorts } from './ports.ts';
import { waitFor } from './wait.ts';

/** The host in its network, which nothing else is in. */
export const ADDRESS = '10.0.2.15';
/** Everything takes a multiple of its time on an emulated processor. */
const WAIT_MS_MAX = 900_000;
const CONSOLE_LINES = 40;
/**
 * Nested virtualization and the widest addresses are what Debian's kernel stumbles over, emulated.
 */
const PROCESSOR = 'max,svm=off,la57=off,-erms,-fsrm';
const run = promisify(execFile);
/** Options of ssh and scp. A host that is slow is waited for, and one that is gone is not. */
const SSH_OPTIONS = [
  ...['-q', '-o', 'StrictHostKeyChecking=no', '-o', 'UserKnownHostsFile=/dev/null'],
  ...['-o', 'ConnectTimeout=20', '-o', 'ServerAliveInterval=30', '-o', 'ServerAliveCountMax=8'],
];

/** @param from a port of this machine; what comes there goes to `to` of the host */
const forward = (from: number, to: number): string => `hostfwd=tcp:127.0.0.1:${from}-:${to}`;

/**
 * Runs a program with all that it starts, which the signal ends as a whole.
 * @returns what it printed
 */
export async function runGroup(
  program: string,
  args: readonly string[],
  options: { readonly signal: AbortSignal },
): Promise<string> {
  const timeout = ['--kill-after=20', String(WAIT_MS_MAX / 1000), program, ...args];
  const { stdout } = await run('timeout', timeout, { maxBuffer: 2 ** 26, ...options });
  return stdout;
}

/** A host with Debian, systemd and the package: an emulated machine that reaches nobody. */
export class DebianHost {
  /** Where this machine reaches control of the host. */
  readonly baseUrl: string;
  readonly #directory: string;
  readonly #sshPort: number;
  readonly #apiPort: number;
  readonly #signal: AbortSignal;
  #qemu: ChildProcess | undefined;

  private constructor(
    directory: string,
    [sshPort = 0, apiPort = 0]: readonly number[],
    signal: AbortSignal,
  ) {
    this.#directory = directory;
    this.#signal = signal;
    this.#sshPort = sshPort;
    this.#apiPort = apiPort;
    this.baseUrl = `http://127.0.0.1:${apiPort}`;
  }

  /**
   * Installs Debian and the package on a disk of the host's own, and turns it on.
   * @param signal ends the host, and so all that waits for it
   */
  static async install(directory: string, deb: string, signal: AbortSignal): Promise<DebianHost> {
    await mkdir(directory);
    await runGroup(join(import.meta.dirname, 'build-debian-disk'), [directory, deb], { signal });
    const host = new DebianHost(directory, await freePorts(2), signal);
    host.#start();
    return host;
  }

  #start(): void {
    const at = (name: string): string => join(this.#directory, name);
    const ports = `${forward(this.#sshPort, 22)},${forward(this.#apiPort, 8700)}`;
    const drive = (name: string): string[] => [
      ...['-drive', `file=${at(name)},format=raw,if=virtio,cache=unsafe`],
    ];
    const devices = [
      ...[...drive('disk.ext4'), ...drive('storage.ext4')],
      ...['-netdev', `user,id=net,restrict=on,${ports}`, '-device', 'virtio-net-pci,netdev=net'],
      ...['-device', 'virtio-rng-pci', '-serial', `file:${at('console.log')}`],
      ...['-qmp', `unix:${at('qmp')},server=on,wait=off`],
    ];
    // Setpriv has the kernel end it with the test: AVA kills a file that takes too long.
    this.#qemu = spawn(
      'setpriv',
      [
        ...['--pdeathsig', 'KILL', '--', 'qemu-system-x86_64'],
        ...['-M', 'q35', '-accel', 'tcg,thread=multi', '-cpu', PROCESSOR, '-smp', '2', '-m', '3G'],
        ...['-nodefaults', '-nographic', '-kernel', at('vmlinuz'), '-initrd', at('initrd')],
        ...['-append', 'root=/dev/vda console=ttyS0 net.ifnames=0', ...devices],
      ],
      { stdio: ['ignore', 'ignore', 'inherit'], signal: this.#signal, killSignal: 'SIGKILL' },
    );
    this.#qemu.on('error', () => undefined); // The signal has ended it, which callers see.
  }

  get isRunning(): boolean {
    return this.#qemu?.exitCode === null && this.#qemu.signalCode === null;
  }

  /**
   * Makes the same call again until it succeeds.
   * @throws Error of the last call when the host has ended or too much time has passed
   */
  async insist<T>(what: string, call: () => Promise<T>): Promise<T> {
    let last = '';
    const attempt = async (): Promise<{ value: T } | undefined> => {
      try {
        return { value: await call() };
      } catch (error) {
        last = String(error);
        if (!this.isRunning) throw error;
        return undefined;
      }
    };
    try {
      return (await waitFor(what, attempt, WAIT_MS_MAX)).value;
    } catch (error) {
      throw new Error(`${String(error)}; the last attempt: ${last}`, { cause: error });
    }
  }

  /** Whether the host runs, and the end of what it printed on its console. */
  async describe(): Promise<string> {
    const console = await readFile(join(this.#directory, 'console.log'), 'utf8').catch(String);
    const lines = console.trimEnd().split('\n').slice(-CONSOLE_LINES).join('\n');
    return `The host ${this.isRunning ? 'runs' : 'has ended'}. Its console:\n${lines}`;
  }

  /**
   * Runs a script of bash as root.
   * @returns what it printed
   * @throws Error with what it printed when it fails
   */
  async run(script: string): Promise<string> {
    const options = [...SSH_OPTIONS, '-i', join(this.#directory, 'key'), '-p'];
    const target = [String(this.#sshPort), 'root@127.0.0.1', 'bash -e 2>&1'];
    const child = spawn('ssh', [...options, ...target], {
      stdio: ['pipe', 'pipe', 'inherit'],
      timeout: WAIT_MS_MAX,
    });
    child.stdin.on('error', () => undefined); // Nobody reads it when the host cannot be reached.
    // Read whole before it is run: nothing that it starts may read the rest of it.
    child.stdin.end(`{\n${script}\nexit\n} </dev/null\n`);
    const ended = once(child, 'exit') as Promise<[code: number | null]>;
    const [output, [code]] = await Promise.all([text(child.stdout), ended]);
    if (code !== 0) throw new Error(`exit code ${String(code)} of ${script}:\n${output}`);
    return output;
  }

  /** Copies a file to `/root`. */
  async copy(file: string): Promise<void> {
    const options = [...SSH_OPTIONS, '-i', join(this.#directory, 'key'), '-P'];
    const target = [String(this.#sshPort), file, 'root@127.0.0.1:'];
    await run('scp', [...options, ...target], { timeout: WAIT_MS_MAX });
  }

  /**
   * Until the host has started all that it is to start.
   * @param except the boot that it is to be another one than
   * @returns what names this boot
   */
  booted(except = ''): Promise<string> {
    return this.insist('the host to have booted', async () => {
      const id = await this.bootId();
      if (id === except) throw new Error('it has not gone down yet');
      await this.run('systemctl is-system-running --wait || true');
      return id;
    });
  }

  async bootId(): Promise<string> {
    return (await this.run('cat /proc/sys/kernel/random/boot_id')).trim();
  }

  /** Presses the reset button. */
  async reset(): Promise<void> {
    const socket = connect(join(this.#directory, 'qmp'));
    await once(socket, 'connect');
    try {
      const lines = createInterface(socket)[Symbol.asyncIterator]();
      await lines.next();
      for (const execute of ['qmp_capabilities', 'system_reset']) {
        socket.write(`${JSON.stringify({ execute })}\n`);
        await lines.next();
      }
    } finally {
      socket.destroy();
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#qemu === undefined || !this.isRunning) return;
    const ended = once(this.#qemu, 'exit');
    this.#qemu.kill('SIGKILL');
    await ended;
  }
}
