import type { CommandJobKind } from '../../shared/jobs/jobs.ts';
import type { StorageWatch } from '../../shared/storage-watch.ts';
import type { ExecRegistry } from '../execs/exec-registry.ts';
import type { JobHandlers } from './job-handlers.ts';

/** Turns commands on disks, and searches of them, into actors that run to their end. */
export const commandJobs = (
  execs: ExecRegistry,
  storage: StorageWatch,
): JobHandlers<CommandJobKind> => ({
  'exec.run': async ({ id, requestId, deadlineAt, payload }, reportBegun) => {
    storage.refuseIfLow();
    const spec = { id, requestId, deadlineAt, ...payload };
    const { outcome, output } = await execs.runExec(spec, reportBegun);
    return { result: outcome, body: output };
  },
  // Needs no storage: a host that is full still searches.
  'grep.run': async ({ id, requestId, deadlineAt, payload }, reportBegun) => {
    const spec = { id, requestId, deadlineAt, ...payload };
    const { outcome, matches } = await execs.runGrep(spec, reportBegun);
    return { result: outcome, body: [matches] };
  },
});
