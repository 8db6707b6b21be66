import type { CommandJobKind } from '../../shared/jobs/jobs.ts';
import type { StorageWatch } from '../../shared/storage-watch.ts';
import type { ExecRegistry } from '../commands/exec-registry.ts';
import type { JobProcessors } from './job-processors.ts';

/** Handles the jobs that run a command on disks or search one: each gets an actor of its own. */
export const commandJobs = (
  execs: ExecRegistry,
  storage: StorageWatch,
): JobProcessors<CommandJobKind> => ({
  'exec.run': async ({ id, requestId, deadlineAt, payload }, reportBegun) => {
    storage.refuseIfLow();
    const spec = { id, requestId, deadlineAt, ...payload };
    const { outcome, output } = await execs.runExec(spec, reportBegun);
    return { result: outcome, body: output };
  },
  // A search writes nothing, so it also runs while the host's storage is almost full.
  'grep.run': async ({ id, requestId, deadlineAt, payload }, reportBegun, sendPart) => {
    const { inParts = false, ...search } = payload;
    const spec = { id, requestId, deadlineAt, ...search, ...(inParts && { onMatches: sendPart }) };
    const { outcome, matches } = await execs.runGrep(spec, reportBegun);
    return { result: outcome, body: [matches] };
  },
});
