import { toError } from '../../../shared/errors.ts';
import type { MachineEnd, MachineSpec } from '../driver.ts';
import { recoverMachine } from '../shim/supervised-machine.ts';
import { templateOfRecovered } from './memory/templates-in-use.ts';
import { type MicrovmHost, pathsOf, VIRTUAL_MACHINE, watchMachine } from './microvm-host.ts';
import type { MicrovmMachine } from './microvm-machine.ts';
import { vmCgroup } from './process/launch.ts';

/** Takes over a VM that a former agent started. @returns it, or how it has ended */
export const recoverVm = (
  host: MicrovmHost,
  spec: MachineSpec,
): Promise<MicrovmMachine | MachineEnd> => {
  const { run: runDir } = pathsOf(host, spec.vmId);
  const cgroup = vmCgroup(host, spec.vmId);
  return recoverMachine({ runDir, cgroup, kind: VIRTUAL_MACHINE }, async (identity) => {
    const machines = [identity.machine.pid];
    const template = templateOfRecovered(runDir, (key) =>
      host.templates.byKey(key, spec, machines),
    );
    // Without its template, a machine continues to run but cannot be paused or forked.
    await template().catch((error: unknown) => {
      host.log.warn({ vmId: spec.vmId, err: toError(error) }, 'machine:findTemplateFailed');
    });
    const machine = watchMachine(host, spec, identity, template);
    machine.openGuest();
    return machine;
  });
};
