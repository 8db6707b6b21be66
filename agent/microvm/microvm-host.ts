import { join } from 'node:path';
import { sandboxIdPattern } from '../../shared/ids.ts';
import type { Logger } from '../../shared/log.ts';
import type { MachineSpec } from '../sandboxes/machine-driver.ts';
import type { Template } from './memory/template.ts';
import type { TemplateStore } from './memory/template-store.ts';
import { MicrovmMachine } from './microvm-machine.ts';
import { type VmHost, vmCgroup } from './qemu/launch.ts';
import { machinePaths } from './qemu/machine-directory.ts';
import type { Accelerator } from './qemu/qemu-arguments.ts';
import type { MachineIdentity } from '../machines/shim-files.ts';

/** What the machines of this host share. */
export interface MicrovmHost extends VmHost {
  readonly sandboxesDir: string;
  readonly accelerator: Accelerator;
  readonly bootTimeoutMs: number;
  readonly templates: TemplateStore;
  readonly log: Logger;
}

const idPattern = new RegExp(sandboxIdPattern, 'u');

export const isVmId = (name: string): boolean => idPattern.test(name);

/** A machine's own directory. @throws RangeError for a text that is no VM id */
export function directoryOf({ sandboxesDir }: MicrovmHost, vmId: string): string {
  // Checked because the text becomes part of paths that are removed.
  if (!isVmId(vmId)) throw new RangeError(`not a VM id: ${vmId}`);
  return join(sandboxesDir, vmId);
}

/** The paths in a machine's directory. @throws RangeError for a text that is no VM id */
export const pathsOf = (host: MicrovmHost, vmId: string): ReturnType<typeof machinePaths> =>
  machinePaths(directoryOf(host, vmId));

/**
 * Begins to control a machine whose processes run.
 * @param template the template that its memory started from; undefined when it cannot be found
 */
export const watchMachine = (
  host: MicrovmHost,
  { vmId }: Pick<MachineSpec, 'vmId'>,
  identity: MachineIdentity,
  template: Template | undefined,
): MicrovmMachine =>
  new MicrovmMachine({
    ...{ vmId, identity, template },
    runDir: pathsOf(host, vmId).run,
    cgroup: vmCgroup(host, vmId),
    log: host.log,
  });
