import { closeSync } from 'node:fs';
import { Socket } from 'node:net';
import type { Writable } from 'node:stream';
import { toError } from '../../../shared/errors.ts';
import { native } from '../../native/native.ts';
import { untilRunning } from '../shim/until-running.ts';
import type { MachineOrigin, MachineSpec } from '../driver.ts';
import { readIdentity } from '../shim/shim-files.ts';
import { bringUpGuest, type Restoring } from './bring-up-guest.ts';
import type { BringUp } from './configure-guest.ts';
import { findBase } from './disk/disk-base.ts';
import { readChain } from './disk/disk-chain.ts';
import {
  captureTime,
  CheckpointError,
  discardCheckpoint,
  invalidateCheckpoint,
  restoreCheckpoint,
  restoreTemplate,
  templateOf,
} from './memory/checkpoint.ts';
import { continueMachine, type MachineProcess } from './memory/machine-state.ts';
import type { Template } from './memory/template.ts';
import { recordTemplate } from './memory/templates-in-use.ts';
import { directoryOf } from '../shim/sandbox-directory.ts';
import { type MicrovmHost, pathsOf, watchMachine } from './microvm-host.ts';
import type { MicrovmMachine } from './microvm-machine.ts';
import { launch, type LaunchMemory } from './process/launch.ts';

/** Loads memory and device state into a machine before its first instruction. */
type Load = (machine: MachineProcess, incoming: Writable) => Promise<void>;

interface Restored {
  readonly template: Template;
  readonly kind: MachineOrigin['kind'];
  readonly load: Load;
  readonly bringUp?: Restoring;
}

/** Starts a machine from the template of its shape; boots it while there is none. */
export async function startNew(
  host: MicrovmHost,
  spec: MachineSpec,
  signal: AbortSignal,
): Promise<MicrovmMachine> {
  const template = await host.templates.forNew(spec);
  if (template.isBlank) return bootKernel(host, spec, template, signal);
  const load: Load = (...machine) => restoreTemplate(...machine, template);
  return restore(host, spec, { template, kind: 'template', load }, signal);
}

/**
 * Starts a machine from its checkpoint, which is invalidated before the first instruction.
 * @param bringUp not frozen: its processes stand still until the guest is configured again
 */
export async function startFromCheckpoint(
  host: MicrovmHost,
  spec: MachineSpec,
  signal: AbortSignal,
  bringUp: BringUp,
): Promise<MicrovmMachine> {
  const { checkpoint: directory } = pathsOf(host, spec.vmId);
  try {
    const key = await templateOf(directory);
    if (key === undefined) throw new CheckpointError('there is no checkpoint');
    const template = await host.templates.byKey(key, spec);
    const load: Load = async (...machine) => {
      await restoreCheckpoint(...machine, { directory, template });
      await invalidateCheckpoint(directory);
    };
    const stoodStillSince = await captureTime(directory);
    const restored = { template, kind: 'checkpoint', load } as const;
    const how = { ...bringUp, stoodStillSince };
    const machine = await restore(host, spec, { ...restored, bringUp: how }, signal);
    // In the background, since removing large files takes long; the next pause waits for it.
    machine.checkpointRemoved = discardCheckpoint(directory).catch((err: unknown) => {
      host.log.warn({ err: toError(err), vmId: spec.vmId }, 'checkpoint:discardFailed');
    });
    return machine;
  } catch (error) {
    // The damage is permanent, so another attempt would fail as well.
    if (error instanceof CheckpointError) await discardCheckpoint(directory);
    throw error;
  }
}

async function bootKernel(
  host: MicrovmHost,
  spec: MachineSpec,
  template: Template,
  signal: AbortSignal,
): Promise<MicrovmMachine> {
  const machine = await launchMachine(host, spec, template, {
    kind: 'private',
    ram: template.ram,
  });
  machine.origin = { kind: 'boot', beganAt: performance.now() };
  machine.openGuest();
  await untilRunning(host, machine, signal, (limit) =>
    bringUpGuest(host, machine.guest, spec, limit, { isFrozen: false }),
  );
  return machine;
}

async function restore(
  host: MicrovmHost,
  spec: MachineSpec,
  { template, kind, load, bringUp = { isFrozen: false } }: Restored,
  signal: AbortSignal,
): Promise<MicrovmMachine> {
  const [readFd, writeFd] = native.pipe();
  const incoming = new Socket({ fd: writeFd, readable: false, writable: true });
  incoming.on('error', () => undefined); // loadDevices learns of failures from QEMU's status.
  try {
    const memory = { kind: 'restored', ram: template.ram, incoming: readFd } as const;
    const machine = await launchMachine(host, spec, template, memory);
    await untilRunning(host, machine, signal, async (limit) => {
      const live = { pid: machine.pid, monitor: await machine.monitor(limit) };
      await load(live, incoming);
      limit.throwIfAborted();
      machine.openGuest(); // QEMU buffers what is sent until the guest runs.
      await continueMachine(live);
      machine.origin = { kind, beganAt: performance.now() };
      await bringUpGuest(host, machine.guest, spec, limit, bringUp);
    });
    return machine;
  } finally {
    closeSync(readFd);
    incoming.destroy();
  }
}

async function launchMachine(
  host: MicrovmHost,
  spec: MachineSpec,
  template: Template,
  memory: LaunchMemory,
): Promise<MicrovmMachine> {
  const { vmId, vcpuCount, memSizeMib, uid, slot } = spec;
  const { run, disks } = pathsOf(host, vmId);
  const { namespace, tap, guestMac: mac } = slot;
  const directory = directoryOf(host, vmId);
  await launch(host, {
    ...{ name: vmId, directory, vcpuCount, memSizeMib, uid, memory },
    accelerator: host.templates.acceleratorOf(template, spec),
    diskLayers: await readChain(disks),
    diskBase: (await findBase(directory, host)).path,
    network: { namespace, tap, mac },
  });
  await recordTemplate(run, template);
  const identity = await readIdentity(run);
  if (identity === undefined) throw new Error('the shim recorded no identity of the machine');
  return watchMachine(host, spec, identity, () => Promise.resolve(template));
}
