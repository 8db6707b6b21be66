import type { SandboxRecord } from '../../../shared/schemas/sandbox-record.ts';
import type { JobCall } from '../../region/job-dispatch.ts';
import { beginOnHost } from '../../region/begin-on-host.ts';
import type { Deps } from '../../region/deps.ts';
import { discardOnHost } from '../../region/discard-on-host.ts';
import type { SandboxOfAccount } from './sandbox-actions.ts';

/**
 * Has a host create a sandbox at most once: new, as a fork, or from a snapshot.
 * @param sandbox the id of the new sandbox
 * @returns the sandbox, once its host has journalled it
 * @throws AppError the host's error, or that it did not answer; no sandbox is left there then
 */
export async function beginSandbox<
  K extends 'sandbox.create' | 'sandbox.fork' | 'sandbox.fromSnapshot',
>(deps: Deps, sandbox: SandboxOfAccount, call: JobCall<K>): Promise<SandboxRecord> {
  const { hostId, requestId } = call;
  const { accountId, sandboxId } = sandbox;
  return beginOnHost(deps, call, {
    resultOf: ({ sandbox: made }) => made,
    find: () => deps.directory.sandboxes.get(accountId, sandboxId),
    discard: async () => {
      // Without this note the name looks taken until the host has removed the sandbox.
      await deps.directory.sandboxes
        .noteUndone(accountId, sandboxId, hostId)
        .catch(() => undefined);
      await discardOnHost(deps, { kind: 'sandbox.discard', payload: sandbox, hostId, requestId });
    },
  });
}
