import { runInBackground } from '../../../shared/background.ts';
import { AppError, toError } from '../../../shared/errors.ts';
import type { NetworkPolicy } from '../../../shared/schemas/network-policy.ts';
import type { NameAddresses, SandboxRow } from '../../system/journal/sandbox-journal.ts';
import { planSlot } from '../../network/slots/slot.ts';
import { failpoint } from '../../system/failpoint.ts';
import type { SandboxContext } from './sandbox-context.ts';
import { trustOwnAuthority } from '../holds/trust-authority.ts';

/**
 * Replaces the policy of a running sandbox. It counts before it is journalled, so that a policy
 * which closes something is never answered for while it does not count; an agent that ends in
 * between has the former one count again.
 * @throws AppError `not_enabled`; `unavailable` when the former policy still counts
 */
export async function replacePolicy(context: SandboxContext, policy: NetworkPolicy): Promise<void> {
  const { sandbox, deps } = context;
  const { row } = sandbox;
  const stored = deps.policies.store(row.id, policy);
  try {
    await failpoint('replace policy', () => applyPolicy(context, { ...row, ...stored }));
    await sandbox.setNetwork(stored);
    const { machine } = context.current;
    if (machine !== undefined) await trustOwnAuthority(deps, sandbox.row, machine);
  } catch (error) {
    deps.log.error({ sandboxId: row.id, err: toError(error) }, 'sandbox:setNetworkFailed');
    await restorePolicy(context, row);
    const message = 'the network policy could not be replaced; the former one counts; try again';
    throw new AppError('unavailable', message, { cause: error });
  }
}

/** The addresses of its policy's names that the sandbox's memory may know. */
export function nameAddresses({
  sandbox,
  deps,
}: SandboxContext): Promise<NameAddresses | undefined> {
  const { row } = sandbox;
  const plan = row.slot === undefined ? undefined : planSlot(deps.hostId, row.slot);
  return deps.policies.learnt(row, plan);
}

async function applyPolicy({ deps }: SandboxContext, row: SandboxRow): Promise<void> {
  const { slot } = row;
  if (slot === undefined) throw new Error('the sandbox has no network slot');
  await deps.policies.apply(await deps.slots.take(slot), row);
}

/** Should that fail as well, the guest is better off without a machine than with a wrong policy. */
async function restorePolicy(context: SandboxContext, row: SandboxRow): Promise<void> {
  const { current, deps } = context;
  try {
    await applyPolicy(context, row);
  } catch (error) {
    deps.log.error({ sandboxId: row.id, err: toError(error) }, 'sandbox:restoreNetworkFailed');
    const why = 'its network policy could not be applied, so the host ended it';
    runInBackground('sandbox.kill', () => current.machine?.kill(why));
  }
}
