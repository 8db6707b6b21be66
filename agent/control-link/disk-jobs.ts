import type { DiskJobKind } from '../../shared/jobs/jobs.ts';
import type { StorageWatch } from '../../shared/storage-watch.ts';
import type { DiskRegistry } from '../disks/disk-registry.ts';
import { answer, type JobProcessors } from './job-processors.ts';

/** Handles the jobs on disks by sending messages to their actors. */
export const diskJobs = (
  disks: DiskRegistry,
  storage: StorageWatch,
): JobProcessors<DiskJobKind> => ({
  'disk.create': async ({ payload }) => {
    storage.refuseIfLow();
    await disks.get(payload).create();
    return answer({});
  },
  'disk.delete': async ({ payload }) => {
    await disks.delete(payload);
    return answer({});
  },
  'disk.record': async ({ payload }) => {
    await disks.get(payload).record();
    return answer({});
  },
  'disk.checkMount': async ({ payload }) => {
    await disks.get(payload).checkMount();
    return answer({});
  },
  'disk.release': async ({ payload }) => {
    await disks.get(payload).release();
    return answer({});
  },
  'disk.stat': async ({ id, payload: { key, ...ref } }) =>
    answer(await disks.statFile(ref, key, id)),
  'disk.delegations': async ({ payload }) =>
    answer({ delegations: disks.get(payload).delegations }),
  'disk.revoke': async ({ payload: { clientId, inodeId, ...ref } }) =>
    answer({ revoked: disks.get(ref).revoke(clientId, inodeId) }),
});
