import type { Caller } from '../../../shared/directory/api-keys.ts';
import { newSandboxId } from '../../../shared/ids.ts';
import { isWithin } from '../../../shared/key-scopes.ts';
import { API_LIMITS } from '../limits.ts';
import type { ForkSandbox } from '../../../shared/schemas/sandbox-input.ts';
import type { SandboxRecord } from '../../../shared/schemas/sandbox-record.ts';
import type { Deps } from '../../region/deps.ts';
import { beginSandbox } from './begin-sandbox.ts';
import type { RequestContext } from '../../region/call-disk-host.ts';
import { withClaimedName } from './claim-sandbox-name.ts';
import { findOwner, type SandboxOfAccount, waitMsOf } from './sandbox-actions.ts';
import { findSandbox } from '../../region/find-sandbox.ts';
import { requireMountScope } from '../../http/key-rights.ts';
import { bringDisks } from './place-near-disks.ts';
import { copyHookOf } from './sandbox-input.ts';

/**
 * Copies a sandbox that is running, paused or stopped, with its disk and, unless it is stopped, its
 * memory (docs/api.md, fork). The copy is on the same host. It goes on when the caller hangs up.
 * @returns the copy once its host has journalled it, with `wait` once it runs, if that is soon
 * @throws AppError `bad_request`, `not_found`, `insufficient_scope`, `sandbox_name_conflict`,
 *   `sandbox_limit_reached`, `no_capacity`, `host_full`, `unavailable`, `timeout`, and the refusals
 *   of the lifecycle table; there is no copy then
 */
export async function forkSandbox(
  deps: Deps,
  caller: Caller,
  ref: SandboxOfAccount,
  { name: given, checkpoint, copy_hook: hook, wait }: ForkSandbox & { readonly wait: boolean },
  { requestId }: RequestContext,
): Promise<SandboxRecord> {
  const { accountId } = ref;
  const copyHook = copyHookOf(hook);
  const parent = await findSandbox(deps, accountId, ref.sandboxId);
  requireMountScope(caller, parent.config);
  await findOwner(deps, parent);
  await bringDisks(deps, parent, parent.config.mounts ?? [], { requestId });
  const childId = newSandboxId();
  const { vcpuCount: vcpus, memSizeMib: memoryMib } = parent.config;
  const share = { vcpus, memoryMib };
  const child = { accountId, sandboxId: childId, name: given, share };
  return withClaimedName(deps, child, (name) => {
    const job = {
      ...ref,
      childId,
      name,
      ...(checkpoint === undefined ? {} : { checkpoint }),
      ...copyHook,
      mayMount: isWithin('disk', caller.scopes),
      waitMs: waitMsOf(wait),
    };
    return beginSandbox(
      deps,
      { accountId, sandboxId: childId },
      {
        kind: 'sandbox.fork',
        payload: job,
        hostId: parent.hostId,
        requestId,
        deadlineAt: Date.now() + API_LIMITS.sandboxBeginMs,
      },
    );
  });
}
