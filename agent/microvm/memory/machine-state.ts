import { closeSync, constants, fstatSync, openSync } from 'node:fs';
import { open } from 'node:fs/promises';
import type { Writable } from 'node:stream';
import { finished } from 'node:stream/promises';
import { setTimeout as delay } from 'node:timers/promises';
import { MachineFault } from '../../guest-link/guest-errors.ts';
import type { RamMapping } from '../../native/native.ts';
import { QEMU_FD } from '../qemu/qemu-arguments.ts';
import type { QmpClient } from '../qemu/qmp-client.ts';
import { MiB } from '../../../shared/units.ts';

/** A machine's state is about 120 KB; what is much longer is not one. */
export const DEVICES_BYTES_MAX = 16 * MiB;

const TIMEOUTS_MS = { save: 30_000, load: 30_000, look: 1 } as const;

/** QEMU's process and the way to its monitor. */
export interface MachineProcess {
  /** As the host counts. */
  readonly pid: number;
  readonly monitor: Pick<QmpClient, 'execute'>;
}

/** The machine is in no state in which this could be done. */
export class MachineStateError extends MachineFault {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'MachineStateError';
  }
}

/** `running`, `paused`, `shutdown`, `io-error` … */
export async function statusOf({ monitor }: MachineProcess): Promise<string> {
  const answer = await monitor.execute('query-status');
  const status: unknown =
    typeof answer === 'object' && answer !== null ? Reflect.get(answer, 'status') : undefined;
  return typeof status === 'string' ? status : 'unknown';
}

/**
 * Stops a running machine: neither its processors nor its devices change anything from here on.
 * @throws MachineStateError when it does not run any more, or waits for its disk
 */
export async function stopMachine(machine: MachineProcess): Promise<void> {
  await machine.monitor.execute('stop');
  const status = await statusOf(machine);
  if (status !== 'paused') throw new MachineStateError(`the machine is not stopped but ${status}`);
}

/** Lets a stopped machine go on. */
export async function continueMachine({ monitor }: MachineProcess): Promise<void> {
  await monitor.execute('cont');
}

/**
 * The state of a stopped machine: processors and devices, but no RAM.
 * @param lastOne it will not go on: its disks are written back and let go of, and it is told
 *   when that fails. `cont` takes them again.
 */
export async function saveDevices(
  machine: MachineProcess,
  { lastOne }: { lastOne: boolean },
): Promise<Buffer> {
  const filename = `/proc/self/fd/${QEMU_FD.devices}`;
  // Not only for Xen: it is the one way to write this state without the RAM.
  const args = { filename, live: lastOne };
  await machine.monitor.execute('xen-save-devices-state', args, TIMEOUTS_MS.save);
  return readDevices(machine.pid);
}

/** QEMU may have put any file in the place of ours; it gains nothing by it. */
async function readDevices(pid: number): Promise<Buffer> {
  const fd = openOf(pid, QEMU_FD.devices);
  try {
    const { size } = checkedRegular(fd);
    if (size === 0n || size > DEVICES_BYTES_MAX) {
      throw new MachineStateError(`state of ${size} bytes`);
    }
    const file = await open(`/proc/self/fd/${fd}`, constants.O_RDONLY | constants.O_NONBLOCK);
    try {
      const state = Buffer.alloc(Number(size));
      const { bytesRead } = await file.read(state, 0, state.length, 0);
      if (bytesRead !== state.length) throw new MachineStateError('the state was cut');
      return state;
    } finally {
      await file.close();
    }
  } finally {
    closeSync(fd);
  }
}

/** Which file a machine has as its RAM; also one that a former agent gave to it. */
export function ramOf(pid: number): RamMapping {
  const fd = openOf(pid, QEMU_FD.ram);
  try {
    const { dev, ino, size } = checkedRegular(fd);
    return { device: dev, inode: ino, sizeBytes: Number(size) };
  } finally {
    closeSync(fd);
  }
}

/** Opens the RAM of a machine to be read, whichever file it is. */
export function openRamOf(pid: number): number {
  const place = openOf(pid, QEMU_FD.ram);
  try {
    checkedRegular(place);
    return openSync(`/proc/self/fd/${place}`, constants.O_RDONLY | constants.O_NONBLOCK);
  } finally {
    closeSync(place);
  }
}

/** Only the place: nothing is opened that could block or act. */
const O_PATH = 0o10_000_000;
const openOf = (pid: number, fd: number): number => openSync(`/proc/${pid}/fd/${fd}`, O_PATH);

function checkedRegular(fd: number): { dev: bigint; ino: bigint; size: bigint } {
  const found = fstatSync(fd, { bigint: true });
  if (!found.isFile()) throw new MachineStateError('the machine has exchanged its files');
  return found;
}

/**
 * Gives a machine that was started to be restored the state of its devices; it is stopped then. Its
 * RAM must be complete: devices look into it.
 * @param incoming the writing end of the pipe that it was given for this
 */
export async function loadDevices(
  machine: MachineProcess,
  incoming: Writable,
  devices: Buffer,
): Promise<void> {
  const late = AbortSignal.timeout(TIMEOUTS_MS.load);
  await machine.monitor.execute('migrate-incoming', { uri: `fd:${QEMU_FD.incoming}` });
  incoming.end(devices);
  // Whatever keeps the state from being read, QEMU tells by its status, or by its end.
  const sent = finished(incoming, { signal: late }).catch(() => undefined);
  let status = await statusOf(machine);
  while (status === 'inmigrate' && !late.aborted) {
    await delay(TIMEOUTS_MS.look);
    status = await statusOf(machine);
  }
  await sent;
  incoming.destroy();
  if (status !== 'paused') throw new MachineStateError(`the machine is not restored but ${status}`);
}
