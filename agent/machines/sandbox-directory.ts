import { join } from 'node:path';
import { sandboxIdPattern } from '../../shared/ids.ts';

const idPattern = new RegExp(sandboxIdPattern, 'u');

export const isVmId = (name: string): boolean => idPattern.test(name);

/** A machine's own directory. @throws RangeError for a text that is no VM id */
export function directoryOf(
  { sandboxesDir }: { readonly sandboxesDir: string },
  vmId: string,
): string {
  // Checked because the text becomes part of paths that are removed.
  if (!isVmId(vmId)) throw new RangeError(`not a VM id: ${vmId}`);
  return join(sandboxesDir, vmId);
}
