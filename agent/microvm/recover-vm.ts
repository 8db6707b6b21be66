import { toError } from '../../shared/errors.ts';
import type { MachineEnd, MachineSpec } from '../sandboxes/machine-driver.ts';
import { recoverMachine } from '../machines/kept-machine.ts';
import type { MachineIdentity } from '../machines/shim-files.ts';
import type { Template } from './memory/template.ts';
import { recordedTemplate } from './memory/templates-in-use.ts';
import { type MicrovmHost, pathsOf, VIRTUAL_MACHINE, watchMachine } from './microvm-host.ts';
import type { MicrovmMachine } from './microvm-machine.ts';
import { vmCgroup } from './qemu/launch.ts';

/** Takes over a VM that a former agent started. @returns it, or how it has ended */
export const recoverVm = (
  host: MicrovmHost,
  spec: MachineSpec,
): Promise<MicrovmMachine | MachineEnd> => {
  const { run: runDir } = pathsOf(host, spec.vmId);
  const cgroup = vmCgroup(host, spec.vmId);
  return recoverMachine({ runDir, cgroup, kind: VIRTUAL_MACHINE }, async (identity) => {
    const template = await findTemplate(host, spec, runDir, identity);
    const machine = watchMachine(host, spec, identity, template);
    machine.openGuest();
    return machine;
  });
};

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
