import { runInBackground } from '../../shared/background.ts';
import type { Directory } from '../../shared/directory/directory.ts';
import { toError } from '../../shared/errors.ts';
import type { CommandJobKind } from '../../shared/jobs/jobs.ts';
import type { Logger } from '../../shared/log.ts';
import type { StorageWatch } from '../../shared/storage-watch.ts';
import type { DiskRef } from '../disks/disk-actor.ts';
import type { DiskRegistry } from '../disks/disk-registry.ts';
import type { ExecRegistry } from '../execs/exec-registry.ts';
import type { JobHandlers } from './job-handlers.ts';

export interface CommandJobDeps {
  readonly directory: Directory;
  readonly disks: DiskRegistry;
  readonly execs: ExecRegistry;
  readonly storage: StorageWatch;
  readonly log: Logger;
}

/** Turns commands on disks, and searches of them, into actors that run to their end. */
export const commandJobs = (deps: CommandJobDeps): JobHandlers<CommandJobKind> => ({
  'exec.run': async ({ id, requestId, deadlineAt, payload }, reportBegun) => {
    deps.storage.refuseIfLow();
    const clock = new RunClock(reportBegun);
    const spec = { id, requestId, deadlineAt, ...payload };
    const { outcome, output } = await deps.execs.runExec(spec, clock.begin);
    recordUse(deps, payload.accountId, payload.mounts, clock.elapsedMs);
    return { result: outcome, body: output };
  },
  // Needs no storage: a host that is full still searches.
  'grep.run': async ({ id, requestId, deadlineAt, payload }, reportBegun) => {
    const clock = new RunClock(reportBegun);
    const spec = { id, requestId, deadlineAt, ...payload };
    const { outcome, matches } = await deps.execs.runGrep(spec, clock.begin);
    recordUse(deps, payload.accountId, [payload], clock.elapsedMs);
    return { result: outcome, body: [matches] };
  },
});

/** Measures a command from its turn on, without the time for which it waited. */
class RunClock {
  #begunAt = performance.now();
  readonly #reportBegun: () => void;

  constructor(reportBegun: () => void) {
    this.#reportBegun = reportBegun;
  }

  readonly begin = (): void => {
    this.#begunAt = performance.now();
    this.#reportBegun();
  };

  get elapsedMs(): number {
    return performance.now() - this.#begunAt;
  }
}

/** Figures only: the answer does not wait for them. */
function recordUse(
  { directory, disks, log }: CommandJobDeps,
  accountId: string,
  mounts: readonly { readonly diskId: string }[],
  durationMs: number,
): void {
  const record = async (ref: DiskRef): Promise<void> => {
    try {
      const usedBytes = await disks.get(ref).usedBytes();
      if (usedBytes === undefined) return;
      const at = new Date().toISOString();
      const disk = { accountId, id: ref.diskId };
      await directory.disks.recordUse(disk, { at, usedBytes, durationMs });
    } catch (error) {
      log.warn({ diskId: ref.diskId, err: toError(error) }, 'disk:useNotRecorded');
    }
  };
  for (const diskId of new Set(mounts.map((mount) => mount.diskId))) {
    runInBackground('disk.recordUse', () => record({ accountId, diskId }));
  }
}
