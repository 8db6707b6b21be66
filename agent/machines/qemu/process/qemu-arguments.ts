import assert from 'node:assert';
import type { Accelerator } from '../../../../shared/schemas/host.ts';
import { MiB } from '../../../../shared/units.ts';

/** Numbers of the descriptors that QEMU inherits from the shim; shim.c has the same numbers. */
export const QEMU_FD = {
  monitor: 3,
  guest: 4,
  tap: 5,
  /** The first of the descriptors that the shim passes on from the agent. */
  passed: 10,
  /** The memory file of a template, or of one that is being made. */
  ram: 10,
  /** A memory file to which QEMU saves the devices' state. */
  devices: 11,
  /** The pipe from which a restored machine reads its devices' state. */
  incoming: 12,
} as const;

/** Where QEMU sees its files, in a root of its own. */
export const QEMU_PATH = {
  kernel: '/guest/vmlinuz',
  initramfs: '/guest/initramfs',
  baseDisk: '/base/root',
  disks: '/disks',
} as const;

/** Names the device of the root disk to the monitor. */
export const ROOT_DISK_ID = 'root-disk';

/**
 * Size of QEMU's cache of translated code in MiB. By default it may grow to 1 GiB. The cache counts
 * towards what a machine may use besides its guest's memory (shared/directory/sandbox-need.ts).
 */
const TCG_CACHE_MIB = 128;

export const RAM_PATH = `/proc/self/fd/${QEMU_FD.ram}`;

/** The backing of the guest's memory. */
type GuestMemory =
  | { readonly kind: 'anonymous' }
  /** A file by its path in QEMU's root, such as `/proc/self/fd/10`; written to only if shared. */
  | { readonly kind: 'file'; readonly path: string; readonly isShared: boolean };

/** A machine in QEMU's terms. Paths are those in QEMU's own root. */
export interface QemuSpec {
  readonly architecture: 'x64' | 'arm64';
  readonly accelerator: Accelerator;
  /** Shown in the host's process list. */
  readonly name: string;
  readonly vcpuCount: number;
  readonly memSizeMib: number;
  readonly memory: GuestMemory;
  /** Names of the qcow2 layers of the root disk below `/disks`; the last one is written to. */
  readonly diskLayers: readonly string[];
  /** Undefined for the machine that probes the accelerator, which has neither disk nor network. */
  readonly network: { readonly mac: string } | undefined;
  /** Whether the machine waits for its devices' state instead of booting a kernel. */
  readonly isRestored: boolean;
}

/** Refuses values that contain a comma or other syntax of QEMU's arguments. */
function checked(value: string, pattern: RegExp): string {
  assert(pattern.test(value), `not valid in an argument of QEMU: ${JSON.stringify(value)}`);
  return value;
}

const count = (value: number, max: number): string => {
  assert(Number.isSafeInteger(value) && value >= 1 && value <= max, `out of bounds: ${value}`);
  return String(value);
};

const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$/u;
const PATH = /^(?:\/[A-Za-z0-9._-]+)+$/u;
const MAC = /^(?:[0-9a-f]{2}:){5}[0-9a-f]{2}$/u;

/**
 * Under emulation, copying one byte takes as long as copying a word of eight, so the processor must
 * not advertise fast byte copies. Guests read this when they boot; no saved state depends on it.
 */
const SLOW_FEATURES = ',-erms,-fsrm';

function processor(architecture: QemuSpec['architecture'], accelerator: Accelerator): string {
  if (accelerator === 'kvm') return 'host';
  return architecture === 'x64' ? `max${SLOW_FEATURES}` : 'max';
}

function machine({ architecture, accelerator, isRestored }: QemuSpec): string[] {
  const isX86 = architecture === 'x64';
  // Leaves out devices that no sandbox needs: less to emulate, to probe for, and to attack.
  const options = isX86
    ? 'q35,usb=off,vmport=off,smbus=off,sata=off,i8042=off,hpet=off,graphics=off'
    : `virt,gic-version=${accelerator === 'kvm' ? 'host' : 'max'}`;
  return [
    // Device state saved without RAM lacks the vmdesc section that QEMU would otherwise expect.
    ...['-machine', `${options},memory-backend=ram${isRestored ? ',suppress-vmdesc=on' : ''}`],
    ...[
      '-accel',
      accelerator === 'kvm' ? 'kvm' : `tcg,thread=multi,tb-size=${String(TCG_CACHE_MIB)}`,
    ],
    ...['-cpu', processor(architecture, accelerator)],
    // qboot starts the kernel directly; the default firmware takes 0.2 s longer.
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

/**
 * An emulated processor has no speculative execution to mitigate. Code at another address is
 * translated again, so a program that is loaded at random addresses starts some five times slower:
 * processes of emulated guests have fixed ones, until root in the guest says otherwise.
 *
 * Guests measure the rate of the time stamp counter while they boot. On a busy host the result is
 * wrong by a large factor, for every sandbox of the template. So the clock is the chipset's, whose
 * rate is defined. A read costs 0.7 µs instead of 0.1, which no command was seen to feel. Passing
 * the host's frequency (`tsc=reliable tsc_early_khz`) would tie templates and checkpoints to
 * processors of that frequency: a sandbox that moved to another host would keep a wrong clock.
 */
const EMULATED = ['mitigations=off', 'tsc=unstable', 'no_timer_check', 'norandmaps'];

/** The guest kernel's command line; if quiet, only its warnings and errors reach the console. */
export function kernelCommandLine(
  architecture: QemuSpec['architecture'],
  accelerator: Accelerator,
  isQuiet = true,
): string {
  return [
    `console=${architecture === 'x64' ? 'ttyS0 8250.nr_uarts=1' : 'ttyAMA0'}`,
    isQuiet ? 'quiet' : 'loglevel=7',
    'panic=-1',
    'random.trust_cpu=on',
    'cryptomgr.notests',
    // Features that cost time at every system call, context switch or tick, and that nobody uses
    // here: a guest has one tenant, and the host observes its load.
    ...['lsm=landlock', 'psi=0', 'nowatchdog'],
    // Processes join their control group at once, not after the next ticks of the clock.
    'rcupdate.rcu_expedited=1',
    // A guest's memory is smaller than four levels of page tables can map.
    ...(architecture === 'x64' ? ['no5lvl'] : []),
    // Keeps checkpoints small: with huge pages, a small write would change 2 MiB.
    'transparent_hugepage=madvise',
    ...(accelerator === 'tcg' ? EMULATED : []),
  ].join(' ');
}

/**
 * A kernel to boot, or for a restored machine, whose RAM holds it already, the wait for its state.
 */
const start = ({ architecture, accelerator, isRestored, network: nic }: QemuSpec): string[] =>
  isRestored
    ? ['-incoming', 'defer', '-S', '-global', 'migration.send-configuration=off']
    : [
        ...['-kernel', QEMU_PATH.kernel, '-initrd', QEMU_PATH.initramfs],
        // The machine that probes shows by what its kernel prints how far it has got.
        ...['-append', kernelCommandLine(architecture, accelerator, nic !== undefined)],
      ];

const blockdev = (node: object): string[] => ['-blockdev', JSON.stringify(node)];

/**
 * The root disk: a chain of layers on the base image. Every format and backing file is named here,
 * because what a layer's own header says is not trusted.
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
  // When the host has no free space, the machine stops, and MonitorWatch lets it continue later.
  // Other errors are reported to the guest.
  const options = `drive=root,id=${ROOT_DISK_ID},addr=2,write-cache=on,werror=enospc,rerror=report`;
  return [...args, '-device', `virtio-blk-pci,${options}`];
}

function network({ network: nic }: QemuSpec): string[] {
  if (nic === undefined) return [];
  // A restored machine finds the same network, so it need not announce itself.
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
  // The kernel's console and QEMU's own messages both go to the shim, which logs them.
  ...['-chardev', 'stdio,id=console,signal=off', '-serial', 'chardev:console'],
];

/**
 * QEMU's arguments for one machine. When the guest ends for any reason, QEMU stays and stops, so
 * that an agent which was away learns the reason from `query-status`.
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

/** Arguments that a state depends on: another machine with the same can continue from it. */
export const stateArguments = (spec: QemuSpec): string[] =>
  qemuArguments(spec).map((argument) => argument.replace(SLOW_FEATURES, ''));

/** Kernel arguments, which the guest keeps in its memory. */
export const bootArguments = (
  architecture: QemuSpec['architecture'],
  accelerator: Accelerator,
): string[] => [processor(architecture, accelerator), kernelCommandLine(architecture, accelerator)];

/** The path of QEMU for the host's own architecture. */
export const qemuProgram = (architecture: QemuSpec['architecture']): string =>
  `/usr/bin/qemu-system-${architecture === 'x64' ? 'x86_64' : 'aarch64'}`;
