import { type ChildProcess, spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { mkdir, rm } from 'node:fs/promises';
import { connect, type Socket } from 'node:net';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { slotNamespaces } from '../agent/network/slots/slot-namespace.ts';
import { planSlot, type SlotPlan } from '../agent/network/slots/slot.ts';
import { guestNetwork } from '../agent/machines/qemu/memory/guest-network.ts';
import { GuestChannel } from '../agent/machines/guest-link/guest-channel.ts';
import { run } from '../agent/system/spawn.ts';
import { newHostId } from '../shared/ids.ts';

const BOOT_MS_MAX = 120_000;
const CONNECT_EVERY_MS = 2;

export type Accelerator = 'kvm' | 'tcg';

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
function frozenArguments(parts: BareParts, slot: SlotPlan, overlay: string): string[] {
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
    ...['-netdev', `tap,id=net,ifname=${slot.tap},script=no,downscript=no`],
    ...['-device', `virtio-net-pci,netdev=net,addr=3,romfile=,mac=${slot.guestMac}`],
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

const CLOSED = slotNamespaces({ guestLink: 'tap', routerOf: undefined });

/**
 * The baseline of a sandbox's start: qemu-img, QEMU, and a conversation with the guest agent; no
 * confinement, no journal, no API. Its network namespace is made beforehand.
 */
export class BareQemu implements AsyncDisposable {
  readonly #parts: BareParts;
  readonly #slot: SlotPlan;

  private constructor(parts: BareParts, slot: SlotPlan) {
    this.#parts = parts;
    this.#slot = slot;
  }

  static async prepare(parts: BareParts): Promise<BareQemu> {
    const slot = planSlot(newHostId(), 0);
    await mkdir(parts.directory, { recursive: true });
    await CLOSED.make(slot);
    return new BareQemu(parts, slot);
  }

  /** A cold boot. */
  async run(signal: AbortSignal): Promise<BareTimes> {
    await using machine = await this.start(signal);
    machine.channel.close();
    return machine.times;
  }

  /** Boots a machine until a first command has put something out. */
  async start(signal: AbortSignal): Promise<BareMachine> {
    signal.throwIfAborted();
    const { directory, rootDisk } = this.#parts;
    const beganAt = performance.now();
    const overlay = join(directory, 'root.qcow2');
    await run('qemu-img', ['create', '-q', '-f', 'qcow2', '-b', rootDisk, '-F', 'raw', overlay]);
    const child = this.#startQemu(overlay);
    const exited = once(child, 'exit');
    const kill = (): void => void child.kill('SIGKILL');
    signal.addEventListener('abort', kill);
    const end = async (): Promise<void> => {
      signal.removeEventListener('abort', kill);
      kill();
      await exited;
      await rm(overlay);
    };
    try {
      const stream = await connectWhenThere(join(directory, 'guest'), child);
      const { channel } = await GuestChannel.open(stream, { timeoutMs: BOOT_MS_MAX });
      const runningMs = performance.now() - beganAt;
      await firstOutput(channel, this.#slot);
      const outputMs = performance.now() - beganAt;
      return { channel, times: { runningMs, outputMs }, [Symbol.asyncDispose]: end };
    } catch (error) {
      await end();
      throw error;
    }
  }

  #startQemu(overlay: string): ChildProcess {
    const args = frozenArguments(this.#parts, this.#slot, overlay);
    const within = [`--net=/run/netns/${this.#slot.namespace}`, 'qemu-system-x86_64'];
    return spawn('nsenter', [...within, ...args], {
      stdio: ['ignore', 'ignore', 'inherit'],
      detached: true, // Ctrl-C in the terminal must reach the benchmark only.
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await CLOSED.remove(this.#slot);
    await rm(this.#parts.directory, { recursive: true, force: true });
  }
}

async function connectWhenThere(path: string, child: ChildProcess): Promise<Socket> {
  while (child.exitCode === null && child.signalCode === null) {
    const socket = connect(path);
    try {
      await once(socket, 'connect');
      return socket;
    } catch {
      await sleep(CONNECT_EVERY_MS);
    }
  }
  throw new Error('QEMU ended before it listened');
}

async function firstOutput(channel: GuestChannel, slot: SlotPlan): Promise<void> {
  const output = once(channel, 'output');
  await channel.configure({
    hostname: 'bare',
    machineId: randomUUID(),
    bootId: randomUUID(),
    network: guestNetwork(slot),
    rootDisk: { device: '/dev/vda', type: 'ext4' },
    directory: '/root',
    user: '',
    environment: {},
  });
  await channel.start({
    id: randomUUID(),
    command: 'echo ready',
    environment: {},
    directory: '',
    user: '',
    terminal: undefined,
    stdin: false,
    isFollowed: true,
    isAttachable: false,
    timeoutMs: undefined,
  });
  await output;
}
