import { type ChildProcess, spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { closeSync } from 'node:fs';
import { mkdir, readdir, readFile, rm } from 'node:fs/promises';
import { Socket } from 'node:net';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { GuestChannel } from '../agent/machines/guest-link/guest-channel.ts';
import { connectSocket } from '../agent/machines/shim/connect-socket.ts';
import { addRootDisk } from '../agent/machines/qemu/disk/root-disk.ts';
import { guestNetwork } from '../agent/machines/qemu/memory/guest-network.ts';
import { continueMachine, loadDevices } from '../agent/machines/qemu/memory/machine-state.ts';
import type { Template } from '../agent/machines/qemu/memory/template.ts';
import {
  QEMU_FD,
  QEMU_PATH,
  qemuArguments,
  qemuProgram,
  RAM_PATH,
} from '../agent/machines/qemu/process/qemu-arguments.ts';
import { QmpClient } from '../agent/machines/qemu/process/qmp-client.ts';
import { slotNamespaces } from '../agent/network/slots/slot-namespace.ts';
import { planSlot, type SlotPlan } from '../agent/network/slots/slot.ts';
import { holesPath, native } from '../agent/native/native.ts';
import { newHostId } from '../shared/ids.ts';

const GUEST_MS_MAX = 60_000;
const CONNECT_EVERY_MS = 1;
const LAYER = 'root.qcow2';
const CLOSED = slotNamespaces({ guestLink: 'tap', routerOf: undefined });

/** The steps of a restore, each with the milliseconds that it took. */
export type Steps = Record<'start' | 'restore' | 'configure' | 'first command' | 'next', number>;

/** Processor time of all threads of a process in milliseconds, to the nanosecond. */
async function threadsMs(pid: number): Promise<number> {
  const directory = `/proc/${pid}/task`;
  const texts = (await readdir(directory)).map((thread) =>
    readFile(join(directory, thread, 'schedstat'), 'utf8').catch(() => '0'),
  );
  return (await Promise.all(texts)).reduce(
    (sum, text) => sum + Number(text.split(' ')[0]) / 1e6,
    0,
  );
}

async function retry<T>(child: ChildProcess, attempt: () => Promise<T>): Promise<T> {
  for (;;) {
    try {
      return await attempt();
    } catch (error) {
      if (child.exitCode !== null || child.signalCode !== null) throw error;
      await sleep(CONNECT_EVERY_MS);
    }
  }
}

async function runOnce(channel: GuestChannel): Promise<void> {
  const id = randomUUID();
  const output = once(channel, 'output');
  const place = { environment: {}, directory: '', user: '', timeoutMs: undefined };
  const streams = { terminal: undefined, stdin: false, isFollowed: true, isAttachable: false };
  await channel.start({ id, command: 'echo ready', ...place, ...streams });
  await output;
}

/**
 * QEMU restored from a template with the arguments of sandboxes, and a conversation with the guest
 * agent: no confinement, no shim, no journal, no API. Below this no creation without a prewarmed VM
 * can come. One machine at a time; its network namespace is made beforehand.
 */
export class BareRestore implements AsyncDisposable {
  readonly #directory: string;
  readonly #rootDisk: string;
  readonly #slot: SlotPlan;

  private constructor(directory: string, rootDisk: string, slot: SlotPlan) {
    this.#directory = directory;
    this.#rootDisk = rootDisk;
    this.#slot = slot;
  }

  static async prepare(directory: string, rootDisk: string): Promise<BareRestore> {
    const slot = planSlot(newHostId(), 0);
    await mkdir(directory, { recursive: true });
    await CLOSED.make(slot);
    return new BareRestore(directory, rootDisk, slot);
  }

  /** @returns the steps in processor time of QEMU, and what they took together by the clock */
  async run(template: Template, memSizeMib: number): Promise<{ steps: Steps; wallMs: number }> {
    const directory = this.#directory;
    await addRootDisk(directory, LAYER, this.#rootDisk, process.getuid?.() ?? 0);
    const [readFd, writeFd] = native.pipe();
    const devices = native.newMemory('bench-devices', 4096);
    const incoming = new Socket({ fd: writeFd, readable: false, writable: true });
    incoming.on('error', () => undefined);
    const beganAt = performance.now();
    const child = this.#start(memSizeMib, [template.ram, devices, readFd]);
    const exited = once(child, 'exit');
    try {
      const pid = child.pid ?? 0;
      const monitor = await retry(child, () => QmpClient.open(join(directory, 'monitor')));
      const marks = [0, await threadsMs(pid)];
      const mark = async (): Promise<void> => void marks.push(await threadsMs(pid));
      await loadDevices({ pid, monitor }, incoming, template.devices);
      await continueMachine({ pid, monitor });
      const socket = connectSocket(join(directory, 'guest'));
      const { channel } = await GuestChannel.open(socket, { timeoutMs: GUEST_MS_MAX });
      await mark();
      await this.#configure(channel);
      await mark();
      await runOnce(channel);
      const wallMs = performance.now() - beganAt;
      await mark();
      await runOnce(channel);
      await mark();
      channel.close();
      monitor.close();
      const took = (index: number): number => (marks[index] ?? 0) - (marks[index - 1] ?? 0);
      const steps: Steps = {
        start: took(1),
        restore: took(2),
        configure: took(3),
        'first command': took(4),
        next: took(5),
      };
      return { steps, wallMs };
    } finally {
      child.kill('SIGKILL');
      await exited;
      incoming.destroy();
      closeSync(readFd);
      closeSync(devices);
      for (const name of [LAYER, 'monitor', 'guest'])
        await rm(join(directory, name), { force: true });
    }
  }

  #configure(channel: GuestChannel): Promise<void> {
    return channel.configure({
      ...{ hostname: 'bare', machineId: randomUUID(), bootId: randomUUID() },
      ...{ directory: '/root', user: '', environment: {} },
      network: guestNetwork(this.#slot),
      rootDisk: { device: '/dev/vda', type: 'ext4' },
    });
  }

  /** @param passed the descriptors from {@link QEMU_FD.passed} on */
  #start(memSizeMib: number, passed: readonly number[]): ChildProcess {
    const { namespace, tap, guestMac: mac } = this.#slot;
    const directory = this.#directory;
    const args = qemuArguments({
      ...{ architecture: 'x64', accelerator: 'tcg', name: 'bare', vcpuCount: 1, memSizeMib },
      memory: { kind: 'file', path: RAM_PATH, isShared: false },
      ...{ diskLayers: [LAYER], network: { mac }, isRestored: true },
    });
    const here = args.map((arg) =>
      arg
        .replace(`id=monitor,fd=${QEMU_FD.monitor}`, `id=monitor,path=${directory}/monitor`)
        .replace(`id=guest,fd=${QEMU_FD.guest}`, `id=guest,path=${directory}/guest`)
        .replace(`fd=${QEMU_FD.tap}`, `ifname=${tap},script=no,downscript=no`)
        .replace(QEMU_PATH.baseDisk, this.#rootDisk)
        .replace(`${QEMU_PATH.disks}/`, `${directory}/`),
    );
    const nothing = Array.from({ length: QEMU_FD.passed - 3 }, () => 'ignore' as const);
    const within = [`--net=/run/netns/${namespace}`, qemuProgram('x64')];
    return spawn('nsenter', [...within, ...here], {
      stdio: ['ignore', 'ignore', 'inherit', ...nothing, ...passed],
      env: { ...process.env, LD_PRELOAD: holesPath },
      detached: true, // Ctrl-C in the terminal must reach the benchmark only.
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await CLOSED.remove(this.#slot);
    await rm(this.#directory, { recursive: true, force: true });
  }
}
