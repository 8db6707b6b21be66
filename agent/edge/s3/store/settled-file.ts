import { setTimeout as sleep } from 'node:timers/promises';
import type { FileIdentity } from '../../../native/native.ts';
import { type FileStatus, statusOf } from './file-calls.ts';
import { decodeRecord } from './object-record.ts';

/**
 * How long two changes of a file may bear the same times: the kernel's clock for them moves with
 * its timer, every 10 ms at the slowest (CONFIG_HZ), unless the kernel has finer ones (Linux 6.13).
 */
export const TICK_MS = 11;

/** Whether another change of the same length could leave the file with this very identity. */
export function isUnsettled(file: FileIdentity, record: Buffer | undefined): boolean {
  const ageMs = Date.now() - Number(file.ctimeNs / 1_000_000n);
  return ageMs >= 0 && ageMs < TICK_MS && decodeRecord(record, file) === undefined;
}

/**
 * The status of a file that was just opened, once the next change of it will show in its times. An
 * ETag is made of them when a command wrote the file, so that it must not be given away before.
 * @param status as it was when the file was opened
 */
export async function settledStatus(
  fd: number,
  status: FileStatus,
  record: Buffer | undefined,
): Promise<FileStatus> {
  if (!isUnsettled(status, record)) return status;
  await sleep(TICK_MS);
  return statusOf(fd);
}
