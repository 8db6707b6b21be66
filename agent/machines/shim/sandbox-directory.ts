import { join } from 'node:path';
import { checkedVmId } from '../../system/vm-id.ts';

/** A machine's own directory. @throws RangeError for a text that is no VM id */
export const directoryOf = (
  { sandboxesDir }: { readonly sandboxesDir: string },
  vmId: string,
): string => join(sandboxesDir, checkedVmId(vmId));
