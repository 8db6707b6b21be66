import { uptime } from 'node:os';
import { toError } from '../../shared/errors.ts';
import { hostBootId, isAlive } from '../../shared/process-id.ts';
import type { MachineEnd, MachineSpec } from '../sandboxes/machine-driver.ts';
import { readEnd, isEndKnown } from '../machines/machine-end.ts';
import type { Template } from './memory/template.ts';
import { recordedTemplate } from './memory/templates-in-use.ts';
import { type MicrovmHost, pathsOf, watchMachine } from './microvm-host.ts';
import type { MicrovmMachine } from './microvm-machine.ts';
import { vmCgroup } from './qemu/launch.ts';
import { type MachineIdentity, readIdentity } from '../machines/shim-files.ts';

/** Takes over a machine that a former agent started. @returns the machine, or how it has ended */
export async function recoverMachine(
  host: MicrovmHost,
  spec: MachineSpec,
): Promise<MicrovmMachine | MachineEnd> {
  const { run } = pathsOf(host, spec.vmId);
  const identity = await readIdentity(run);
  if (identity === undefined) {
    return { reason: 'vmm_crashed', message: 'the virtual machine has left no record of itself' };
  }
  if (isAlive(identity.keeper)) {
    const template = await findTemplate(host, spec, run, identity);
    const machine = watchMachine(host, spec, identity, template);
    machine.openGuest();
    return machine;
  }
  if (identity.hostBootId !== hostBootId() && !(await isEndKnown(run))) {
    const endedAt = Math.round(Date.now() - uptime() * 1000); // Its end was then at the latest.
    return { reason: 'host_restarted', message: 'the host was restarted', endedAt };
  }
  await vmCgroup(host, spec.vmId).kill();
  return readEnd(run, undefined);
}

/** Without its template, a machine continues to run but cannot be paused or forked. */
async function findTemplate(
  { templates, log }: MicrovmHost,
  spec: MachineSpec,
  run: string,
  { machine }: MachineIdentity,
): Promise<Template | undefined> {
  try {
    return await templates.byKey(await recordedTemplate(run), spec, [machine.pid]);
  } catch (error) {
    log.warn({ vmId: spec.vmId, err: toError(error) }, 'machine:findTemplateFailed');
    return undefined;
  }
}
