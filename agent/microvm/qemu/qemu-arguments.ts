import assert from 'node:assert';
import { MiB } from '../../../shared/units.ts';

/** Descriptors that the shim leaves open for QEMU (shim.c repeats them). */
export const QEMU_FD = {
  monitor: 3,
  guest: 4,
  tap: 5,
  /** The first of those that the caller of the shim hands through. */
  passed: 10,
  /** The RAM of a template, or of one in the making. */
  ram: 10,
  /** A memory file for the state of the devices. */
  devices: 11,
  /** The stream over which that state comes back; only of machines that are restored. */
  incoming: 12,
} as const;

/** Where QEMU sees its files, in a root of its own. */
export const QEMU_PATH = {
  kernel: '/guest/vmlinuz',
  initramfs: '/guest/initramfs',
  baseDisk: '/base/root',
  disks: '/disks',
} as const;

/**
 * MiB of QEMU's cache of translated code. Bounded, since by default it may grow to 1 GiB; it is part of
 * what a machine may use beside its guest's memory (shared/directory/sandbox-need.ts).
 */
const TCG_CACHE_MIB = 128;

export type Accelerator = 'kvm' | 'tcg';

export const RAM_PATH = `/proc/self/fd/${QEMU_FD.ram}`;

/** What guest memory is made of. */
type GuestMemory =
  | { readonly kind: 'anonymous' }
  /** A file that QEMU sees, for example `/proc/self/fd/10`; changes go to it only if shared. */
  | { readonly kind: 'file'; readonly path: string; readonly isShared: boolean };

/** A virtual machine in QEMU's own terms: all names are those of QEMU's own root. */
export interface QemuSpec {
  readonly architecture: 'x64' | 'arm64';
  readonly accelerator: Accelerator;
  /** For people who look at the host's processes. */
  readonly name: string;
  readonly vcpuCount: number;
  readonly memSizeMib: number;
  readonly memory: GuestMemory;
  /** Names of the qcow2 layers of the root disk below `/disks`; the last one is written to. */
  readonly diskLayers: readonly string[];
  /** Undefined: a machine that has no root disk and no network, to try the host with. */
  readonly network: { readonly mac: string } | undefined;
  /** It waits for its devices' state instead of starting a kernel. */
  readonly isRestored: boolean;
}

/** QEMU splits its arguments at commas: no value may bring one, or anything else of its syntax. */
function checked(value: string, pattern: RegExp): string {
  assert(pattern.test(value), `not fit for an argument of QEMU: ${JSON.stringify(value)}`);
  return value;
}

const count = (value: number, max: number): string => {
  assert(Number.isSafeInteger(value) && value >= 1 && value <= max, `out of bounds: ${value}`);
  return String(value);
};

const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$/u;
const PATH = /^(?:\/[A-Za-z0-9._-]+)+$/u;
const MAC = /^(?:[0-9a-f]{2}:){5}[0-9a-f]{2}$/u;

function machine({ architecture, accelerator, isRestored }: QemuSpec): string[] {
  const isX86 = architecture === 'x64';
  // What no sandbox needs is left out: fewer things to emulate, to probe for, and to attack.
  const options = isX86
    ? 'q35,usb=off,vmport=off,smbus=off,sata=off,i8042=off,hpet=off,graphics=off'
    : `virt,gic-version=${accelerator === 'kvm' ? 'host' : 'max'}`;
  return [
    // A state without RAM has none of the descriptions that QEMU would miss.
    ...['-machine', `${options},memory-backend=ram${isRestored ? ',suppress-vmdesc=on' : ''}`],
    ...[
      '-accel',
      accelerator === 'kvm' ? 'kvm' : `tcg,thread=multi,tb-size=${String(TCG_CACHE_MIB)}`,
    ],
    ...['-cpu', accelerator === 'kvm' ? 'host' : 'max'],
    // Starts the kernel without looking for anything else; the usual one takes 0.2 s more.
    ...(isX86 ? ['-bios', 'qboot.rom'] : []),
  ];
}

function memory({ memory: kind, memSizeMib }: QemuSpec): string[] {
  const size = `${count(memSizeMib, MiB)}M`;
  const object =
    kind.kind === 'anonymous'
      ? `memory-backend-ram,id=ram,size=${size}`
      : `memory-backend-file,id=ram,size=${size},mem-path=${checked(kind.path, PATH)},` +
        `share=${kind.isShared ? 'on' : 'off'}`;
  return ['-m', size, '-object', object];
}

/** The kernel's own words go to the console, and only those that report trouble. */
export function kernelCommandLine(
  architecture: QemuSpec['architecture'],
  accelerator: Accelerator,
): string {
  return [
    `console=${architecture === 'x64' ? 'ttyS0 8250.nr_uarts=1' : 'ttyAMA0'}`,
    'quiet',
    'panic=-1',
    'random.trust_cpu=on',
    'cryptomgr.notests',
    // What each system call, each switch between processes and each tick would pay for, for nobody:
    // the guest is one tenant's, and the host sees how it fares.
    ...['lsm=landlock', 'psi=0', 'nowatchdog'],
    // Small processes stay small: what they write is what a checkpoint keeps.
    'transparent_hugepage=madvise',
    // An emulated processor has no such faults, only the cost of what is done against them; and its
    // timers are what they are.
    ...(accelerator === 'tcg' ? ['mitigations=off', 'tsc=reliable', 'no_timer_check'] : []),
  ].join(' ');
}

/** What the machine begins with. A kernel that is in the RAM already is not read again. */
const start = ({ architecture, accelerator, isRestored }: QemuSpec): string[] =>
  isRestored
    ? ['-incoming', 'defer', '-S', '-global', 'migration.send-configuration=off']
    : [
        ...['-kernel', QEMU_PATH.kernel, '-initrd', QEMU_PATH.initramfs],
        ...['-append', kernelCommandLine(architecture, accelerator)],
      ];

const blockdev = (node: object): string[] => ['-blockdev', JSON.stringify(node)];

/**
 * The root disk, a chain of layers on the image's own. Every format and every backing file is named
 * here: what a layer says of itself is not believed.
 */
function disk({ diskLayers }: QemuSpec): string[] {
  if (diskLayers.length === 0) return [];
  const shared = { driver: 'file', discard: 'unmap', 'auto-read-only': false };
  const base = { ...shared, 'node-name': 'base-file', filename: QEMU_PATH.baseDisk };
  const args = [
    ...blockdev({ ...base, 'read-only': true }),
    ...blockdev({ driver: 'raw', 'node-name': 'base', file: 'base-file', 'read-only': true }),
  ];
  let backing = 'base';
  for (const [index, layer] of diskLayers.entries()) {
    const node = index === diskLayers.length - 1 ? 'root' : `layer${String(index)}`;
    const filename = `${QEMU_PATH.disks}/${checked(layer, NAME)}`;
    const state = { 'read-only': node !== 'root', discard: 'unmap' };
    const file = { ...shared, ...state, 'node-name': `${node}-file`, filename };
    args.push(...blockdev(file));
    args.push(
      ...blockdev({
        driver: 'qcow2',
        'node-name': node,
        file: file['node-name'],
        backing,
        ...state,
      }),
    );
    backing = node;
  }
  // Without room on the host the machine waits, and its owner lets it go on; other faults are told.
  const options = 'drive=root,id=root-disk,addr=2,write-cache=on,werror=enospc,rerror=report';
  return [...args, '-device', `virtio-blk-pci,${options}`];
}

function network({ network: nic }: QemuSpec): string[] {
  if (nic === undefined) return [];
  // It wakes in a network like the one it knows: there is nobody to be told.
  const options = `romfile=,guest_announce=off,mac=${checked(nic.mac, MAC)}`;
  const device = `virtio-net-pci,netdev=net,id=nic,addr=3,${options}`;
  return ['-netdev', `tap,id=net,fd=${String(QEMU_FD.tap)}`, '-device', device];
}

const socket = (id: string, fd: number): string[] => [
  '-chardev',
  `socket,id=${id},fd=${String(fd)},server=on,wait=off`,
];

const channels = (): string[] => [
  ...socket('monitor', QEMU_FD.monitor),
  ...['-mon', 'chardev=monitor,mode=control'],
  ...socket('guest', QEMU_FD.guest),
  ...['-device', 'virtio-serial-pci,id=ports,addr=4,max_ports=4'],
  ...['-device', 'virtserialport,bus=ports.0,chardev=guest,name=berth.guest.0'],
  // What the kernel prints goes the way of QEMU's own messages: to the shim.
  ...['-chardev', 'stdio,id=console,signal=off', '-serial', 'chardev:console'],
];

/**
 * The arguments of QEMU for one machine. Whatever ends the guest leaves QEMU stopped, so that an
 * agent that was away finds out by `query-status` what it was.
 */
export function qemuArguments(spec: QemuSpec): string[] {
  return [
    ...['-name', `guest=${checked(spec.name, NAME)}`],
    ...['-nodefaults', '-no-user-config', '-display', 'none'],
    '-sandbox',
    'on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny',
    ...machine(spec),
    ...['-smp', count(spec.vcpuCount, 255)],
    ...memory(spec),
    ...start(spec),
    ...disk(spec),
    ...network(spec),
    ...channels(),
    ...['-device', 'pvpanic-pci,addr=5'],
    ...['-action', 'reboot=shutdown,shutdown=pause,panic=pause'],
    ...['-rtc', 'base=utc'],
  ];
}

/** The program that runs machines of the host's own processor type. */
export const qemuProgram = (architecture: QemuSpec['architecture']): string =>
  `/usr/bin/qemu-system-${architecture === 'x64' ? 'x86_64' : 'aarch64'}`;
