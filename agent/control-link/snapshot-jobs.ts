import type { SandboxJobKind } from '../../shared/jobs/jobs.ts';
import { parseNetworkPolicy } from '../../shared/network/parse-policy.ts';
import type { HostSandboxes } from '../sandboxes/open-sandboxes.ts';
import { answer, type JobProcessors } from './job-processors.ts';

type SnapshotJobKind = Extract<SandboxJobKind, `snapshot.${string}` | 'sandbox.fromSnapshot'>;

/** Handles the jobs on snapshots. */
export const snapshotJobs = ({
  registry,
  creator,
}: Pick<HostSandboxes, 'registry' | 'creator'>): JobProcessors<SnapshotJobKind> => ({
  'sandbox.fromSnapshot': async ({ payload }) => {
    const { sandboxId, accountId, snapshotId, environment, network, waitMs, ...config } = payload;
    const actor = await creator.createFromSnapshot({
      ...{ sandboxId, accountId, snapshotId, config, environment },
      network: network && parseNetworkPolicy(network),
    });
    await actor.settled(waitMs);
    return answer({ sandbox: await actor.publishedRecord() });
  },
  'snapshot.create': async ({ payload: { snapshotId, name, copyHook, waitMs, ...ref } }) => {
    const snapshot = await creator.snapshot(ref, { snapshotId, name, copyHook });
    await snapshot.settled(waitMs);
    return answer({ snapshot: snapshot.record });
  },
  'snapshot.delete': async ({ payload: ref }) => {
    const dependentForks = await registry.deleteSnapshot(ref);
    return answer(dependentForks === undefined ? {} : { dependentForks });
  },
  'snapshot.discard': async ({ payload: ref }) => {
    await registry.discardSnapshot(ref);
    return answer({});
  },
});
