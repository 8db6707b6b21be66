import { once } from 'node:events';
import { rm } from 'node:fs/promises';
import { connect, type Socket } from 'node:net';
import { join } from 'node:path';
import { GuestChannel } from '../agent/machines/guest-link/guest-channel.ts';
import type { SlotPlan } from '../agent/network/slots/slot.ts';
import { run } from '../agent/system/spawn.ts';
import { BareSlot, firstOutput, whileRunning } from './bare-slot.ts';
import { ending } from './ending.ts';

const BOOT_MS_MAX = 120_000;

type Accelerator = 'kvm' | 'tcg';

/** The parts that a bare machine is started from: the same as those of the sandboxes beside it. */
export interface BareParts {
  /** Holds `vmlinuz` and `initramfs`. */
  readonly guestDir: string;
  readonly rootDisk: string;
  readonly accelerator: Accelerator;
  readonly memSizeMib: number;
  /** For the machine's own files; created here. */
  readonly directory: string;
}

/**
 * QEMU's arguments as sandboxes had them when they were first measured. They are written out
 * instead of taken from the product, so that every later gain or loss of the product shows. x86_64
 * only.
 */
function frozenArguments(parts: BareParts, { tap, guestMac }: SlotPlan, overlay: string): string[] {
  const { guestDir, rootDisk, accelerator, memSizeMib, directory } = parts;
  const isEmulated = accelerator === 'tcg';
  const kernelLine =
    'console=ttyS0 8250.nr_uarts=1 quiet panic=-1 random.trust_cpu=on cryptomgr.notests' +
    (isEmulated ? ' mitigations=off tsc=unstable no_timer_check' : '');
  const machine =
    'q35,usb=off,vmport=off,smbus=off,sata=off,i8042=off,hpet=off,graphics=off,memory-backend=ram';
  const layers = [
    { driver: 'file', 'node-name': 'base-file', filename: rootDisk, 'read-only': true },
    { driver: 'raw', 'node-name': 'base', file: 'base-file', 'read-only': true },
    { driver: 'file', 'node-name': 'root-file', filename: overlay, discard: 'unmap' },
    { driver: 'qcow2', 'node-name': 'root', file: 'root-file', backing: 'base', discard: 'unmap' },
  ];
  return [
    ...['-name', 'guest=bare', '-nodefaults', '-no-user-config', '-display', 'none'],
    ...['-sandbox', 'on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny'],
    ...['-machine', machine],
    ...['-accel', isEmulated ? 'tcg,thread=multi,tb-size=128' : 'kvm'],
    ...['-cpu', isEmulated ? 'max' : 'host', '-bios', 'qboot.rom', '-smp', '1'],
    ...['-m', `${memSizeMib}M`, '-object', `memory-backend-ram,id=ram,size=${memSizeMib}M`],
    ...['-kernel', join(guestDir, 'vmlinuz'), '-initrd', join(guestDir, 'initramfs')],
    ...['-append', kernelLine],
    ...layers.flatMap((layer) => ['-blockdev', JSON.stringify(layer)]),
    ...['-device', 'virtio-blk-pci,drive=root,addr=2,write-cache=on,werror=enospc,rerror=report'],
    ...['-netdev', `tap,id=net,ifname=${tap},script=no,downscript=no`],
    ...['-device', `virtio-net-pci,netdev=net,addr=3,romfile=,mac=${guestMac}`],
    ...['-chardev', `socket,id=monitor,path=${directory}/monitor,server=on,wait=off`],
    ...['-mon', 'chardev=monitor,mode=control'],
    ...['-chardev', `socket,id=guest,path=${directory}/guest,server=on,wait=off`],
    ...['-device', 'virtio-serial-pci,id=ports,addr=4,max_ports=4'],
    ...['-device', 'virtserialport,bus=ports.0,chardev=guest,name=berth.guest.0'],
    ...['-chardev', 'stdio,id=console,signal=off', '-serial', 'chardev:console'],
    ...['-device', 'pvpanic-pci,addr=5', '-rtc', 'base=utc'],
    ...['-action', 'reboot=shutdown,shutdown=pause,panic=pause'],
  ];
}

/** Milliseconds from the start. */
export interface BareTimes {
  /** Until the guest agent answered. */
  readonly runningMs: number;
  /** Until the guest had its identity and disk, and `echo` had printed something. */
  readonly outputMs: number;
}

/** A bare machine that runs, with its channel configured. Disposing of it ends it. */
export interface BareMachine extends AsyncDisposable {
  readonly channel: GuestChannel;
  readonly times: BareTimes;
}

/**
 * The baseline of a sandbox's start: qemu-img, QEMU, and a conversation with the guest agent; no
 * confinement, no journal, no API. Its network namespace is made beforehand.
 */
export class BareQemu implements AsyncDisposable {
  readonly #parts: BareParts;
  readonly #slot: BareSlot;

  private constructor(parts: BareParts, slot: BareSlot) {
    this.#parts = parts;
    this.#slot = slot;
  }

  static async prepare(parts: BareParts): Promise<BareQemu> {
    return new BareQemu(parts, await BareSlot.make(parts.directory));
  }

  /** A cold boot. */
  async run(): Promise<BareTimes> {
    await using machine = await this.start();
    machine.channel.close();
    return machine.times;
  }

  /** Boots a machine until a first command has put something out. */
  async start(): Promise<BareMachine> {
    ending.throwIfAborted();
    const { directory, rootDisk } = this.#parts;
    const beganAt = performance.now();
    const overlay = join(directory, 'root.qcow2');
    await run('qemu-img', ['create', '-q', '-f', 'qcow2', '-b', rootDisk, '-F', 'raw', overlay]);
    const args = frozenArguments(this.#parts, this.#slot.plan, overlay);
    const child = this.#slot.spawn('qemu-system-x86_64', args);
    const exited = once(child, 'exit');
    const kill = (): void => void child.kill('SIGKILL');
    ending.addEventListener('abort', kill);
    const end = async (): Promise<void> => {
      ending.removeEventListener('abort', kill);
      kill();
      await exited;
      await rm(overlay);
    };
    try {
      const socket = await whileRunning(child, () => connected(join(directory, 'guest')));
      const { channel } = await GuestChannel.open(socket, { timeoutMs: BOOT_MS_MAX });
      const runningMs = performance.now() - beganAt;
      await this.#slot.configure(channel);
      await firstOutput(channel, 'echo ready');
      const outputMs = performance.now() - beganAt;
      return { channel, times: { runningMs, outputMs }, [Symbol.asyncDispose]: end };
    } catch (error) {
      await end();
      throw error;
    }
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#slot[Symbol.asyncDispose]();
  }
}

async function connected(path: string): Promise<Socket> {
  const socket = connect(path);
  await once(socket, 'connect');
  return socket;
}
