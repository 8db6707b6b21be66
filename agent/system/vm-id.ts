import { sandboxIdPattern } from '../../shared/ids.ts';

const pattern = new RegExp(sandboxIdPattern, 'u');

export const isVmId = (text: string): boolean => pattern.test(text);

/**
 * Checks a text that becomes part of paths, which may be removed.
 * @throws RangeError for a text that is no VM id
 */
export function checkedVmId(text: string): string {
  if (!isVmId(text)) throw new RangeError(`not a VM id: ${text}`);
  return text;
}
