import { closeSync, constants, fstatSync, openSync } from 'node:fs';
import { open } from 'node:fs/promises';
import type { Writable } from 'node:stream';
import { finished } from 'node:stream/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import { MachineFault } from '../../guest-link/guest-errors.ts';
import type { RamMapping } from '../../../native/native.ts';
import { QEMU_FD } from '../process/qemu-arguments.ts';
import type { QmpClient } from '../process/qmp-client.ts';
import { MiB } from '../../../../shared/units.ts';

/** The state of a machine's devices takes about 120 KB; anything much longer is refused. */
export const DEVICES_BYTES_MAX = 16 * MiB;

const TIMEOUTS_MS = { save: 30_000, load: 30_000, poll: 1 } as const;

/** QEMU's process and its monitor. */
export interface MachineProcess {
  /** In the host's pid namespace. */
  readonly pid: number;
  readonly monitor: Pick<QmpClient, 'execute'>;
}

/** The machine's state does not allow the operation. */
export class MachineStateError extends MachineFault {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'MachineStateError';
  }
}

/** QEMU's run state: `running`, `paused`, `shutdown`, `io-error` … */
export async function statusOf({ monitor }: MachineProcess): Promise<string> {
  const answer = await monitor.execute('query-status');
  const status: unknown =
    typeof answer === 'object' && answer !== null ? Reflect.get(answer, 'status') : undefined;
  return typeof status === 'string' ? status : 'unknown';
}

/**
 * Stops a running machine: neither processors nor devices change anything from then on.
 * @throws MachineStateError when the machine has ended or waits for its disk
 */
export async function stopMachine(machine: MachineProcess): Promise<void> {
  await machine.monitor.execute('stop');
  const status = await statusOf(machine);
  if (status !== 'paused')
    throw new MachineStateError(`the machine could not be stopped: its status is ${status}`);
}

/** Lets a stopped machine continue. */
export async function continueMachine({ monitor }: MachineProcess): Promise<void> {
  await monitor.execute('cont');
}

/**
 * Reads the state of a stopped machine's processors and devices, without its RAM.
 * @param isFinal whether the machine is not meant to continue: QEMU then flushes and releases its
 *   disks, and the command fails if it cannot. `cont` takes the disks again
 */
export async function saveDevices(
  machine: MachineProcess,
  { isFinal }: { isFinal: boolean },
): Promise<Buffer> {
  const filename = `/proc/self/fd/${QEMU_FD.devices}`;
  // Despite its name it is not for Xen only: no other command writes this state without the RAM.
  const args = { filename, live: isFinal };
  await machine.monitor.execute('xen-save-devices-state', args, TIMEOUTS_MS.save);
  return readDevices(machine.pid);
}

/** A hostile QEMU may have replaced the file, so it is opened and read with care. */
async function readDevices(pid: number): Promise<Buffer> {
  const fd = openOf(pid, QEMU_FD.devices);
  try {
    const { size } = checkedRegular(fd);
    if (size === 0n || size > DEVICES_BYTES_MAX) {
      throw new MachineStateError(`the devices' state has ${size} bytes`);
    }
    const file = await open(`/proc/self/fd/${fd}`, constants.O_RDONLY | constants.O_NONBLOCK);
    try {
      const state = Buffer.alloc(Number(size));
      const { bytesRead } = await file.read(state, 0, state.length, 0);
      if (bytesRead !== state.length)
        throw new MachineStateError('the devices’ state was cut short');
      return state;
    } finally {
      await file.close();
    }
  } finally {
    closeSync(fd);
  }
}

/** The file that a machine maps as its RAM, also for a machine of a former agent. */
export function ramOf(pid: number): RamMapping {
  const fd = openOf(pid, QEMU_FD.ram);
  try {
    const { dev, ino, size } = checkedRegular(fd);
    return { device: dev, inode: ino, sizeBytes: Number(size) };
  } finally {
    closeSync(fd);
  }
}

/** Opens the file that a machine maps as its RAM, for reading. */
export function openRamOf(pid: number): number {
  const place = openOf(pid, QEMU_FD.ram);
  try {
    checkedRegular(place);
    return openSync(`/proc/self/fd/${place}`, constants.O_RDONLY | constants.O_NONBLOCK);
  } finally {
    closeSync(place);
  }
}

/** O_PATH opens no file contents, so nothing can block or take effect. */
const O_PATH = 0o10_000_000;
const openOf = (pid: number, fd: number): number => openSync(`/proc/${pid}/fd/${fd}`, O_PATH);

function checkedRegular(fd: number): { dev: bigint; ino: bigint; size: bigint } {
  const found = fstatSync(fd, { bigint: true });
  if (!found.isFile()) throw new MachineStateError('the machine has replaced its files');
  return found;
}

/**
 * Loads the state of its devices into a machine that waits to be restored; the machine is stopped
 * then. Its RAM must be complete, because devices read it.
 * @param incoming the writing end of the pipe that the machine was given for this
 */
export async function loadDevices(
  machine: MachineProcess,
  incoming: Writable,
  devices: Buffer,
): Promise<void> {
  const late = AbortSignal.timeout(TIMEOUTS_MS.load);
  await machine.monitor.execute('migrate-incoming', { uri: `fd:${QEMU_FD.incoming}` });
  incoming.end(devices);
  // QEMU reports any failure to read the state by its status, or by ending.
  const sent = finished(incoming, { signal: late }).catch(() => undefined);
  let status = await statusOf(machine);
  while (status === 'inmigrate' && !late.aborted) {
    await sleep(TIMEOUTS_MS.poll);
    status = await statusOf(machine);
  }
  await sent;
  incoming.destroy();
  if (status !== 'paused')
    throw new MachineStateError(`the machine could not be restored: its status is ${status}`);
}
