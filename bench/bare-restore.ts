import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { closeSync } from 'node:fs';
import { readdir, readFile, rm } from 'node:fs/promises';
import { Socket } from 'node:net';
import { join } from 'node:path';
import { GuestChannel } from '../agent/machines/guest-link/guest-channel.ts';
import { connectSocket } from '../agent/machines/shim/connect-socket.ts';
import { addRootDisk } from '../agent/machines/qemu/disk/root-disk.ts';
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
import { holesPath, native } from '../agent/native/native.ts';
import { BareSlot, firstOutput, whileRunning } from './bare-slot.ts';

const GUEST_MS_MAX = 60_000;
const LAYER = 'root.qcow2';

/** The steps of a restore. */
export const STEPS = ['start', 'restore', 'configure', 'first command', 'next'] as const;

/** Milliseconds of each. */
type Steps = Record<(typeof STEPS)[number], number>;

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

/**
 * QEMU restored from a template with the arguments of sandboxes, and a conversation with the guest
 * agent: no confinement, no shim, no journal, no API. Below this no creation without a prewarmed VM
 * can come. One machine at a time; its network namespace is made beforehand.
 */
export class BareRestore implements AsyncDisposable {
  readonly #rootDisk: string;
  readonly #slot: BareSlot;

  private constructor(rootDisk: string, slot: BareSlot) {
    this.#rootDisk = rootDisk;
    this.#slot = slot;
  }

  static async prepare(directory: string, rootDisk: string): Promise<BareRestore> {
    return new BareRestore(rootDisk, await BareSlot.make(directory));
  }

  /** @returns the steps in processor time of QEMU, and what they took together by the clock */
  async run(template: Template, memSizeMib: number): Promise<{ steps: Steps; wallMs: number }> {
    const { directory } = this.#slot;
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
      const monitor = await whileRunning(child, () => QmpClient.open(join(directory, 'monitor')));
      const marks = [0, await threadsMs(pid)];
      const mark = async (): Promise<void> => void marks.push(await threadsMs(pid));
      await loadDevices({ pid, monitor }, incoming, template.devices);
      await continueMachine({ pid, monitor });
      const socket = connectSocket(join(directory, 'guest'));
      const { channel } = await GuestChannel.open(socket, { timeoutMs: GUEST_MS_MAX });
      await mark();
      await this.#slot.configure(channel);
      await mark();
      await firstOutput(channel, 'echo ready');
      const wallMs = performance.now() - beganAt;
      await mark();
      await firstOutput(channel, 'echo ready');
      await mark();
      channel.close();
      monitor.close();
      const took = STEPS.map((name, i) => [name, (marks[i + 1] ?? 0) - (marks[i] ?? 0)]);
      const steps = Object.fromEntries(took) as Steps;
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

  /** @param passed the descriptors from {@link QEMU_FD.passed} on */
  #start(memSizeMib: number, passed: readonly number[]): ChildProcess {
    const { directory, plan } = this.#slot;
    const { tap, guestMac: mac } = plan;
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
    return this.#slot.spawn(qemuProgram('x64'), here, {
      stdio: ['ignore', 'ignore', 'inherit', ...nothing, ...passed],
      env: { ...process.env, LD_PRELOAD: holesPath },
    });
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#slot[Symbol.asyncDispose]();
  }
}
