/*
 * Machines as the agent launches them, with all that confines them, whose memory a test gives: it
 * makes templates of them, and lets them go on from a checkpoint.
 */
import { closeSync } from 'node:fs';
import { chown, cp, mkdir, rm } from 'node:fs/promises';
import { Socket } from 'node:net';
import { join } from 'node:path';
import type { Writable } from 'node:stream';
import { native } from '../../agent/native/native.ts';
import { detectCgroups, removeCgroups } from '../../agent/system/cgroup.ts';
import { connectSocket } from '../../agent/machines/shim/connect-socket.ts';
import { GuestChannel } from '../../agent/machines/guest-link/guest-channel.ts';
import {
  launch,
  vmCgroup,
  type LaunchMemory,
  type VmHost,
} from '../../agent/machines/qemu/process/launch.ts';
import { machinePaths } from '../../agent/machines/qemu/process/machine-directory.ts';
import type { MachineProcess } from '../../agent/machines/qemu/memory/machine-state.ts';
import { QmpClient } from '../../agent/machines/qemu/process/qmp-client.ts';
import { prepareRootDisk } from '../../agent/machines/qemu/disk/root-disk.ts';
import { readIdentity, runPaths } from '../../agent/machines/shim/shim-files.ts';
import { collect, guestSettings, processSpec } from './guest.ts';
import { temporaryDirectory } from './temporary.ts';

const UID = 701_000_000;
const LAYER = 'root.qcow2';

function setting(name: string): string {
  const value = process.env[name];
  if (value === undefined) throw new Error(`${name} is not set; scripts/test sets it`);
  return value;
}

interface MachineOptions {
  readonly memSizeMib: number;
  readonly vcpuCount?: number;
  readonly memory: LaunchMemory;
  /** Where its disk is: what `newHome` gave. */
  readonly home: string;
}

/** A place for the homes of machines. */
export class MachineRoom implements AsyncDisposable {
  readonly path: string;
  readonly #directory: AsyncDisposable;
  readonly #host: VmHost;
  readonly #machines: TestMachine[] = [];
  #last = 0;

  private constructor(directory: AsyncDisposable & { path: string }, host: VmHost) {
    this.#directory = directory;
    this.#host = host;
    this.path = directory.path;
  }

  static async open(): Promise<MachineRoom> {
    const directory = await temporaryDirectory();
    return new MachineRoom(directory, {
      guestDir: setting('GUEST_DIR'),
      rootDisk: setting('DEFAULT_ROOT_DISK'),
      cgroups: await detectCgroups(),
      cgroupParent: `/berth-test/restorable-${process.pid}`,
    });
  }

  newPath(name: string): string {
    this.#last += 1;
    return join(this.path, `${name}-${this.#last}`);
  }

  /** A directory with a disk of its own, which is new or a copy. */
  async newHome(from?: string): Promise<string> {
    const home = this.newPath('home');
    const { disks } = machinePaths(home);
    await mkdir(home, { mode: 0o711 });
    if (from === undefined) await prepareRootDisk(disks, LAYER, this.#host.rootDisk, UID);
    else await cp(machinePaths(from).disks, disks, { recursive: true, preserveTimestamps: true });
    await chown(join(disks, LAYER), UID, UID);
    return home;
  }

  /** @param incoming as for a machine that is not restored when undefined */
  async start(options: MachineOptions, incoming?: Writable): Promise<TestMachine> {
    this.#last += 1;
    const name = `machine-${this.#last}`;
    const machine = await TestMachine.start(this.#host, name, options, incoming);
    this.#machines.push(machine);
    return machine;
  }

  /** A machine that waits for its state. */
  async startStopped(
    options: Omit<MachineOptions, 'memory'> & { readonly ram: number },
  ): Promise<TestMachine> {
    const [readFd, writeFd] = native.pipe();
    const incoming = new Socket({ fd: writeFd, readable: false, writable: true });
    incoming.on('error', () => undefined);
    try {
      const memory = { kind: 'restored', ram: options.ram, incoming: readFd } as const;
      return await this.start({ ...options, memory }, incoming);
    } finally {
      closeSync(readFd);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#machines.map((machine) => machine.kill()));
    await removeCgroups(this.#host.cgroups, this.#host.cgroupParent);
    await this.#directory[Symbol.asyncDispose]();
  }
}

/** A QEMU and the ways to it. */
export class TestMachine implements MachineProcess {
  readonly pid: number;
  readonly monitor: QmpClient;
  readonly home: string;
  readonly #incoming: Writable | undefined;
  readonly #kill: () => Promise<void>;
  #guest: GuestChannel | undefined;

  private constructor(
    pid: number,
    monitor: QmpClient,
    home: string,
    incoming: Writable | undefined,
    kill: () => Promise<void>,
  ) {
    this.pid = pid;
    this.monitor = monitor;
    this.home = home;
    this.#incoming = incoming;
    this.#kill = kill;
  }

  static async start(
    host: VmHost,
    name: string,
    { home, memSizeMib, vcpuCount = 1, memory }: MachineOptions,
    incoming: Writable | undefined,
  ): Promise<TestMachine> {
    const { run } = machinePaths(home);
    const cgroup = vmCgroup(host, name);
    await launch(host, {
      ...{ name, directory: home, memSizeMib, vcpuCount, memory },
      ...{ accelerator: 'tcg', uid: UID, diskLayers: [LAYER], network: undefined },
    });
    const identity = await readIdentity(run);
    if (identity === undefined) throw new Error('the machine told nothing of itself');
    const monitor = await QmpClient.open(runPaths(run).monitor);
    return new TestMachine(identity.machine.pid, monitor, home, incoming, async () => {
      await cgroup.kill();
      await cgroup.remove();
      await rm(run, { recursive: true, force: true });
    });
  }

  get disk(): string {
    return join(machinePaths(this.home).disks, LAYER);
  }

  get incoming(): Writable {
    if (this.#incoming === undefined) throw new Error('nothing comes in');
    return this.#incoming;
  }

  get guest(): GuestChannel {
    if (this.#guest === undefined) throw new Error('the guest was not reached');
    return this.#guest;
  }

  /** Opens the channel to the guest. */
  async reach(): Promise<GuestChannel> {
    const stream = connectSocket(runPaths(machinePaths(this.home).run).guest);
    const { channel } = await GuestChannel.open(stream, { timeoutMs: 60_000 });
    channel.setMaxListeners(0); // A test may watch many processes, with a listener each.
    this.#guest = channel;
    return channel;
  }

  /** Tells the guest who it is. */
  async configure(hostname: string): Promise<void> {
    const rootDisk = { device: '/dev/vda', type: 'ext4' };
    await this.guest.configure(guestSettings({ hostname, rootDisk }));
  }

  /** Output of a command; it must succeed. */
  async run(command: string): Promise<string> {
    const { text, exit } = await collect(this.guest, processSpec(command));
    if (exit?.exitCode !== 0) throw new Error(`${command}: ${exit?.exitCode}: ${text}`);
    return text.trim();
  }

  /** Leaves its home. May be repeated. */
  async kill(): Promise<void> {
    this.#guest?.close();
    this.monitor.close();
    this.#incoming?.destroy();
    await this.#kill();
  }
}
