import type { Page, PageRequest } from '../../../shared/directory/page.ts';
import { AppError } from '../../../shared/errors.ts';
import { newSandboxId } from '../../../shared/ids.ts';
import { API_LIMITS } from '../limits.ts';
import { DIRECTORY_LIMITS } from '../../../shared/directory/limits.ts';
import type { CreateSnapshot } from '../../../shared/schemas/snapshot.ts';
import type { SnapshotRecord } from '../../../shared/schemas/snapshot-record.ts';
import { beginOnHost } from '../../region/begin-on-host.ts';
import type { RequestContext } from '../../region/call-disk-host.ts';
import { claimName } from '../../region/claim-name.ts';
import type { Deps } from '../../region/deps.ts';
import { beingUndone, discardOnHost } from '../../region/discard-on-host.ts';
import { deleteOnHost } from '../../region/delete-on-host.ts';
import { findHost } from '../../region/find-host.ts';
import { findSandbox } from '../../region/find-sandbox.ts';
import { type SandboxOfAccount, waitMsOf } from '../sandboxes/sandbox-actions.ts';
import { copyHookOf } from '../sandboxes/sandbox-input.ts';

/** A snapshot, and how many sandboxes that were created from it exist. */
export interface CountedSnapshot {
  readonly record: SnapshotRecord;
  readonly sandboxCount: number;
}

/**
 * Makes a snapshot of a sandbox that is running, paused or stopped (docs/snapshots.md). It goes on
 * when the caller hangs up.
 * @param wait undefined: the answer waits for a moment, since most snapshots are made in it
 * @returns the snapshot once its host has journalled it, with `wait` once it is ready or has failed
 * @throws AppError `not_found`, `snapshot_name_conflict`, `snapshot_limit_reached`, `host_full`,
 *   `unavailable`, `timeout`, and the refusals of the lifecycle table; there is no snapshot then
 */
export async function createSnapshot(
  deps: Deps,
  ref: SandboxOfAccount,
  { name, copy_hook: hook, wait }: CreateSnapshot & { readonly wait: boolean | undefined },
  { requestId }: RequestContext,
): Promise<SnapshotRecord> {
  const { accountId, sandboxId } = ref;
  const copyHook = copyHookOf(hook);
  const { hostId } = await findSandbox(deps, accountId, sandboxId);
  await findHost(deps, hostId, `sandbox ${sandboxId}`);
  const { snapshots } = deps.directory;
  const id = newSandboxId();
  const snapshot = { accountId, snapshotId: id };
  await claim(deps, { accountId, id, name });
  const waitMs = wait === undefined ? API_LIMITS.sandboxBriefWaitMs : waitMsOf(wait);
  const payload = { ...ref, snapshotId: id, name, ...copyHook, waitMs };
  const deadlineAt = Date.now() + API_LIMITS.sandboxBeginMs;
  const call = { kind: 'snapshot.create' as const, payload, hostId, requestId, deadlineAt };
  try {
    return await beginOnHost(deps, call, {
      resultOf: ({ snapshot: made }) => made,
      find: () => snapshots.get(accountId, id),
      discard: async () => {
        await snapshots.noteUndone(accountId, id, hostId).catch(() => undefined);
        const undo = { kind: 'snapshot.discard' as const, payload: snapshot, hostId, requestId };
        await discardOnHost(deps, undo);
      },
    });
  } catch (error) {
    // If this fails as well, the claim expires.
    await snapshots.releaseClaim({ accountId, id, name }).catch(() => undefined);
    throw error;
  }
}

async function claim(
  { directory: { snapshots } }: Deps,
  named: { readonly accountId: string; readonly id: string; readonly name: string },
): Promise<void> {
  const result = await claimName(named.name, () =>
    snapshots.claim(named, API_LIMITS.sandboxClaimMs),
  );
  if (result === 'claimed') return;
  if (result === 'name_taken') {
    if (await snapshots.isBeingUndone(named.accountId, named.name)) throw beingUndone(named.name);
    throw new AppError('snapshot_name_conflict', `a snapshot named ${named.name} exists`);
  }
  const message = `the account has ${DIRECTORY_LIMITS.snapshotsPerAccountMax} snapshots; delete one first`;
  throw new AppError('snapshot_limit_reached', message);
}

/** A page of the account's snapshots, oldest first. */
export async function listSnapshots(
  deps: Deps,
  accountId: string,
  request: PageRequest,
): Promise<Page<CountedSnapshot>> {
  const { items, ...page } = await deps.directory.snapshots.list(accountId, request);
  const counts = await countSandboxes(deps, accountId);
  return { ...page, items: items.map((record) => counted(record, counts)) };
}

/** Adds how many sandboxes there are of a snapshot. */
export const countOne = async (deps: Deps, record: SnapshotRecord): Promise<CountedSnapshot> =>
  counted(record, await countSandboxes(deps, record.accountId));

const counted = (record: SnapshotRecord, counts: ReadonlyMap<string, number>): CountedSnapshot => ({
  record,
  sandboxCount: counts.get(record.id) ?? 0,
});

/** How many sandboxes of the account were created from each snapshot. */
async function countSandboxes(
  { directory }: Deps,
  accountId: string,
): Promise<ReadonlyMap<string, number>> {
  const counts = new Map<string, number>();
  for (const { snapshotId } of await directory.sandboxes.list(accountId)) {
    if (snapshotId !== undefined) counts.set(snapshotId, (counts.get(snapshotId) ?? 0) + 1);
  }
  return counts;
}

/**
 * Deletes a snapshot that no sandbox stands on.
 * @throws AppError `unavailable`, `timeout`, `snapshot_not_ready` while it is being made,
 *   `snapshot_in_use`
 */
export async function deleteSnapshot(
  deps: Deps,
  { accountId, id: snapshotId, hostId }: SnapshotRecord,
  { requestId }: RequestContext,
): Promise<void> {
  await findHost(deps, hostId, `snapshot ${snapshotId}`);
  const payload = { accountId, snapshotId };
  const deadlineAt = Date.now() + API_LIMITS.sandboxBeginMs;
  const call = { kind: 'snapshot.delete' as const, payload, hostId, requestId, deadlineAt };
  await deleteOnHost({
    name: `snapshot ${snapshotId}`,
    refusal: 'snapshot_in_use',
    remove: async () => (await deps.jobs.call(call)).result,
    find: () => deps.directory.snapshots.get(accountId, snapshotId),
  });
}
