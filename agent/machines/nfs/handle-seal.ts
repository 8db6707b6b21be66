import { hkdfSync } from 'node:crypto';
import type { MachineMount } from '../attachments.ts';

/** Key length of siphash.h. */
const KEY_BYTES = 16;

/**
 * The key with which a sandbox's NFS server seals the handles that it gives to its guest
 * (seal-handles.c). The same disks and subdirectories have the same key, so that files stay open
 * over a pause, and in forks; others have another, so that a handle is of no use with them. Pure.
 */
export function sealKey(
  handleSecret: Buffer,
  mounts: readonly Pick<MachineMount, 'diskId' | 'subdirectory'>[],
): Buffer {
  const exported = mounts.map(({ diskId, subdirectory }) => [diskId, subdirectory]);
  const what = JSON.stringify(exported.toSorted(([a = ''], [b = '']) => (a < b ? -1 : 1)));
  return Buffer.from(hkdfSync('sha256', handleSecret, what, 'berth NFS handles', KEY_BYTES));
}
