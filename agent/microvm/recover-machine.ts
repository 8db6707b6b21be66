import { uptime } from 'node:os';
import { toError } from '../../shared/errors.ts';
import { hostBootId, isAlive } from '../../shared/process-id.ts';
import type { MachineEnd, MachineSpec } from '../sandboxes/machine-driver.ts';
import { howItEnded, isEndKnown } from './machine-end.ts';
import type { Template } from './memory/template.ts';
import { recordedTemplate } from './memory/templates-in-use.ts';
import { type MicrovmHost, pathsOf, watchMachine } from './microvm-host.ts';
import type { MicrovmMachine } from './microvm-machine.ts';
import { vmCgroup } from './qemu/launch.ts';
import { type MachineIdentity, readIdentity } from './qemu/shim.ts';

/** Takes over the machine that a former agent started, or tells how it ended since. */
export async function recoverMachine(
  host: MicrovmHost,
  spec: MachineSpec,
): Promise<MicrovmMachine | MachineEnd> {
  const { run } = pathsOf(host, spec.vmId);
  const identity = await readIdentity(run);
  if (identity === undefined) {
    return { reason: 'vmm_crashed', message: 'nothing is left of the virtual machine' };
  }
  if (isAlive(identity.keeper)) {
    const template = await findTemplate(host, spec, run, identity);
    const machine = watchMachine(host, spec, identity, template);
    machine.letGuestTalk();
    return machine;
  }
  if (identity.hostBootId !== hostBootId() && !(await isEndKnown(run))) {
    const endedAt = Math.round(Date.now() - uptime() * 1000); // At the latest.
    return { reason: 'host_restarted', message: 'the host was restarted', endedAt };
  }
  await vmCgroup(host, spec.vmId).kill();
  return howItEnded(run, undefined);
}

/** Without its template a machine runs on, but cannot be paused or forked. */
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
