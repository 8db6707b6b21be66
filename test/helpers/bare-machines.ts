/*
 * Virtual machines of QEMU under a user of their own, with the arguments and descriptors that the
 * agent gives them. Only what confines them beyond that is left out.
 */
import { type ChildProcess, spawn, type StdioOptions } from 'node:child_process';
import { once } from 'node:events';
import { closeSync } from 'node:fs';
import { chmod, chown, copyFile, mkdir } from 'node:fs/promises';
import { connect, type Socket } from 'node:net';
import { join } from 'node:path';
import type { Duplex } from 'node:stream';
import { setTimeout as delay } from 'node:timers/promises';
import { holesPath, native } from '../../agent/native/native.ts';
import { GuestChannel } from '../../agent/runtimes/microvm/guest-channel.ts';
import type { MachineProcess } from '../../agent/runtimes/microvm/machine-state.ts';
import {
  QEMU_FD,
  QEMU_PATH,
  qemuArguments,
  qemuProgram,
  RAM_PATH,
} from '../../agent/runtimes/microvm/qemu-arguments.ts';
import { QmpClient } from '../../agent/runtimes/microvm/qmp-client.ts';
import { run } from '../../agent/spawn.ts';
import { collect, guestSettings, processSpec } from './guest.ts';
import { temporaryDirectory } from './temporary.ts';

const UID = 600_099_000 + (process.pid % 1000);
const architecture = process.arch === 'arm64' ? 'arm64' : 'x64';

function setting(name: string): string {
  const value = process.env[name];
  if (value === undefined) throw new Error(`${name} is not set; scripts/test sets it`);
  return value;
}

interface MachineOptions {
  readonly memSizeMib: number;
  readonly vcpuCount?: number;
  /** A descriptor. */
  readonly ram: number;
  readonly isRamShared?: boolean;
  readonly isRestored?: boolean;
  readonly disk: string;
}

/** A place for the disks and sockets of machines. */
export class MachineRoom implements AsyncDisposable {
  readonly path: string;
  readonly #directory: AsyncDisposable;
  readonly #machines: TestMachine[] = [];
  #last = 0;

  private constructor(directory: AsyncDisposable & { path: string }) {
    this.#directory = directory;
    this.path = directory.path;
  }

  static async open(): Promise<MachineRoom> {
    const directory = await temporaryDirectory();
    await chmod(directory.path, 0o711);
    await mkdir(join(directory.path, 'machines'), { mode: 0o700 });
    await chown(join(directory.path, 'machines'), UID, UID);
    return new MachineRoom(directory);
  }

  newPath(name: string): string {
    this.#last += 1;
    return join(this.path, 'machines', `${name}-${this.#last}`);
  }

  /** A layer on the default root disk, or a copy of one. */
  async newDisk(from?: string): Promise<string> {
    const path = this.newPath('disk');
    if (from === undefined) {
      const base = setting('DEFAULT_ROOT_DISK');
      await run('qemu-img', ['create', '-q', '-f', 'qcow2', '-b', base, '-F', 'raw', path]);
    } else {
      await copyFile(from, path);
    }
    await chown(path, UID, UID);
    return path;
  }

  async start(options: MachineOptions): Promise<TestMachine> {
    const machine = await TestMachine.start(this.newPath('socket'), options);
    this.#machines.push(machine);
    return machine;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#machines.map((machine) => machine.kill()));
    await this.#directory[Symbol.asyncDispose]();
  }
}

const replacements = (socket: string, disk: string): [string, string][] => [
  [QEMU_PATH.kernel, join(setting('GUEST_DIR'), 'vmlinuz')],
  [QEMU_PATH.initramfs, join(setting('GUEST_DIR'), 'initramfs')],
  [QEMU_PATH.baseDisk, setting('DEFAULT_ROOT_DISK')],
  [`${QEMU_PATH.disks}/root`, disk],
  [`id=monitor,fd=${QEMU_FD.monitor},`, `id=monitor,path=${socket}-monitor,`],
  [`id=guest,fd=${QEMU_FD.guest},`, `id=guest,path=${socket}-guest,`],
];

function argumentsFor(socket: string, options: MachineOptions): string[] {
  const { memSizeMib, vcpuCount = 1, isRamShared = false, isRestored = false } = options;
  const args = qemuArguments({
    architecture,
    accelerator: 'tcg',
    name: 'test',
    vcpuCount,
    memSizeMib,
    memory: { kind: 'file', path: RAM_PATH, isShared: isRamShared },
    diskLayers: ['root'],
    network: undefined,
    isRestored,
  });
  return args.map((argument) =>
    replacements(socket, options.disk).reduce((text, pair) => text.replace(...pair), argument),
  );
}

/** One QEMU and the ways to it. */
export class TestMachine implements MachineProcess {
  readonly monitor: QmpClient;
  /** Of a machine that is to be restored. */
  readonly incoming: Duplex;
  readonly disk: string;
  #guest: GuestChannel | undefined;
  readonly #child: ChildProcess;
  readonly #socket: string;
  readonly #ended: Promise<unknown>;

  private constructor(child: ChildProcess, socket: string, disk: string, monitor: QmpClient) {
    this.#child = child;
    this.#socket = socket;
    this.#ended = once(child, 'close');
    this.disk = disk;
    this.monitor = monitor;
    this.incoming = child.stdio.at(QEMU_FD.incoming) as Duplex;
    this.incoming.on('error', () => undefined);
  }

  static async start(socket: string, options: MachineOptions): Promise<TestMachine> {
    const devices = native.newMemory('berth-devices', 4096);
    const before = Array.from({ length: QEMU_FD.passed }, (_, fd) => (fd === 2 ? 2 : 'ignore'));
    const child = spawn(qemuProgram(architecture), argumentsFor(socket, options), {
      stdio: [...before, options.ram, devices, 'pipe'] as StdioOptions,
      uid: UID,
      gid: UID,
      env: { PATH: '/usr/bin', LD_PRELOAD: holesPath },
    });
    closeSync(devices);
    const monitor = await untilOpen(child, () => QmpClient.open(`${socket}-monitor`));
    return new TestMachine(child, socket, options.disk, monitor);
  }

  get pid(): number {
    return this.#child.pid ?? -1;
  }

  get guest(): GuestChannel {
    if (this.#guest === undefined) throw new Error('the guest was not reached');
    return this.#guest;
  }

  /** Opens the channel to the guest. */
  async reach(): Promise<GuestChannel> {
    const path = `${this.#socket}-guest`;
    const stream = await untilOpen(this.#child, () => connected(path));
    const { channel } = await GuestChannel.open(stream, { timeoutMs: 60_000 });
    channel.setMaxListeners(0); // One for each process that a test looks at.
    this.#guest = channel;
    return channel;
  }

  /** Tells the guest who it is. */
  async configure(hostname: string): Promise<void> {
    const rootDisk = { device: '/dev/vda', type: 'ext4' };
    await this.guest.configure(guestSettings({ hostname, rootDisk }));
  }

  /** What a command puts out; it must succeed. */
  async run(command: string): Promise<string> {
    const { text, exit } = await collect(this.guest, processSpec(command));
    if (exit?.exitCode !== 0) throw new Error(`${command}: ${exit?.exitCode}: ${text}`);
    return text.trim();
  }

  async kill(): Promise<void> {
    this.#guest?.close();
    this.monitor.close();
    this.incoming.destroy();
    this.#child.kill('SIGKILL');
    await this.#ended;
  }
}

function connected(path: string): Promise<Socket> {
  const { promise, resolve, reject } = Promise.withResolvers<Socket>();
  const socket = connect({ path });
  socket.once('connect', () => resolve(socket));
  socket.once('error', reject);
  return promise;
}

async function untilOpen<T>(child: ChildProcess, open: () => Promise<T>): Promise<T> {
  for (;;) {
    try {
      return await open();
    } catch (error) {
      if (child.exitCode !== null || child.signalCode !== null) throw error;
      await delay(5);
    }
  }
}
