import type { SandboxJobKind } from '../../shared/jobs/jobs.ts';
import { AppError } from '../../shared/errors.ts';
import { parseNetworkPolicy } from '../../shared/network/parse-policy.ts';
import { settledWithin } from '../../shared/settled-within.ts';
import type { StorageWatch } from '../../shared/storage-watch.ts';
import type { HostSandboxes } from '../sandboxes/open-sandboxes.ts';
import { answer, type JobProcessors } from './job-processors.ts';
import { snapshotJobs } from './snapshot-jobs.ts';

type SandboxJobParts = Pick<HostSandboxes, 'registry' | 'creator'> & {
  readonly storage: Pick<StorageWatch, 'refuseIfUnusable'>;
};

/** Runs a command in a sandbox, and answers with what there is of it after the wait. */
const runExec =
  ({
    registry,
    storage,
  }: Pick<
    SandboxJobParts,
    'registry' | 'storage'
  >): JobProcessors<'sandbox.exec'>['sandbox.exec'] =>
  async ({ payload: { execId: id, waitMs, ...spec } }) => {
    storage.refuseIfUnusable();
    const { command, environment, hasTerminal, timeoutSeconds } = spec;
    const beganAt = performance.now();
    const actor = registry.find(spec);
    const begun = { id, command, environment, hasTerminal, timeoutSeconds };
    const { ended } = await actor.exec(begun);
    // Starting the command may already have taken part of the wait.
    const leftMs = waitMs - (performance.now() - beganAt);
    if (leftMs > 0) await settledWithin(ended, leftMs);
    const { exec, stdout, stderr } = await actor.readExec(id);
    return answer({ exec }, [stdout, stderr]);
  };

/** Handles the jobs on sandboxes by sending messages to their actors. */
export const sandboxJobs = ({
  registry,
  creator,
  storage,
}: SandboxJobParts): JobProcessors<SandboxJobKind> => ({
  'sandbox.create': async ({
    payload: { sandboxId, accountId, environment, network, image, waitMs, ...config },
  }) => {
    const actor = await creator.create({
      ...{ sandboxId, accountId, config, environment, image },
      network: network && parseNetworkPolicy(network),
    });
    await actor.settled(waitMs);
    return answer({ sandbox: await actor.publishedRecord() });
  },
  'sandbox.action': async ({ payload: { action, mounts, copyHook, waitMs, ...ref } }) => {
    storage.refuseIfUnusable();
    const actor = registry.find(ref);
    await (action === 'start' ? actor.start(mounts, copyHook) : actor[action]());
    await actor.settled(waitMs);
    return answer({ sandbox: await actor.publishedRecord() });
  },
  'sandbox.delete': async ({ payload: ref }) => {
    storage.refuseIfUnusable();
    const dependentForks = await registry.delete(ref);
    return answer(dependentForks === undefined ? {} : { dependentForks });
  },
  'sandbox.fork': async ({ payload }) => {
    const { childId, name, checkpoint, mayMount, copyHook, waitMs, ...ref } = payload;
    storage.refuseIfUnusable();
    const fork = { sandboxId: childId, name, checkpoint, mayMount, copyHook };
    const child = await creator.fork(ref, fork);
    await child.settled(waitMs);
    return answer({ sandbox: await child.publishedRecord() });
  },
  ...snapshotJobs({ registry, creator }),
  'sandbox.setLimits': async ({ payload: { timeoutSeconds, idleTtlSeconds, ...ref } }) => {
    const actor = registry.find(ref);
    await actor.setLimits({ timeoutSeconds, idleTtlSeconds });
    return answer({ sandbox: await actor.publishedRecord() });
  },
  'sandbox.setNetwork': async ({ payload: { policy, ...ref } }) => {
    const actor = registry.find(ref);
    await actor.setNetwork(parseNetworkPolicy(policy));
    return answer({ sandbox: await actor.publishedRecord() });
  },
  'sandbox.decisions': async ({ payload: ref }) =>
    answer({ decisions: await registry.find(ref).decisions() }),
  'sandbox.usage': async ({ payload: ref }) => answer({ usage: await registry.find(ref).usage() }),
  'sandbox.processes': async ({ payload: ref }) =>
    answer({ processes: await registry.find(ref).processes() }),
  'sandbox.discard': async ({ payload: ref }) => {
    await creator.discard(ref);
    return answer({});
  },
  'sandbox.exec': runExec({ registry, storage }),
  'sandbox.execs': async ({ payload: ref }) => answer({ execs: await registry.find(ref).execs() }),
  'sandbox.execOutput': async ({ payload: { execId, ...ref } }) => {
    const { exec, stdout, stderr } = await registry.find(ref).readExec(execId);
    return answer({ exec }, [stdout, stderr]);
  },
  'sandbox.cancelExec': async ({ payload: { execId, ...ref } }) => {
    return answer({ exec: await registry.find(ref).cancelExec(execId) });
  },
});

const refuse = (): never => {
  throw new AppError('not_enabled', 'this host runs no sandboxes: see GUEST_DIR');
};

/** For a host that runs no sandboxes. */
export const noSandboxJobs: JobProcessors<SandboxJobKind> = {
  'sandbox.create': refuse,
  'sandbox.action': refuse,
  'sandbox.delete': refuse,
  'sandbox.fork': refuse,
  'sandbox.fromSnapshot': refuse,
  'snapshot.create': refuse,
  'snapshot.delete': refuse,
  'snapshot.discard': refuse,
  'sandbox.setLimits': refuse,
  'sandbox.setNetwork': refuse,
  'sandbox.decisions': refuse,
  'sandbox.usage': refuse,
  'sandbox.processes': refuse,
  'sandbox.discard': refuse,
  'sandbox.exec': refuse,
  'sandbox.execs': refuse,
  'sandbox.execOutput': refuse,
  'sandbox.cancelExec': refuse,
};
