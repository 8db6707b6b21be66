import type { DiskRecord } from '../../shared/directory/disk-record.ts';
import { newAccountId, newDiskId } from '../../shared/ids.ts';

/** The record of an available disk with a new id, in a new account. */
export const newDiskRecord = (change: Partial<DiskRecord> = {}): DiskRecord => ({
  id: newDiskId(),
  accountId: newAccountId(),
  organization: 'organization',
  region: 'local-test',
  name: 'disk',
  status: 'available',
  createdAt: new Date().toISOString(),
  allowedIps: [],
  allowedOrigins: [],
  users: [],
  revision: 1,
  ...change,
});
