import type { Sandboxes } from '../../../shared/directory/sandboxes.ts';
import type { SandboxRow } from '../../system/journal/sandbox-journal.ts';

type Row = Pick<SandboxRow, 'id' | 'accountId' | 'vmId' | 'revision'>;

/** A sandbox of this host's journal that another host has published as its own. */
interface TakenOverElsewhere<R> {
  readonly of: R;
  readonly by: string;
}

/**
 * Finds the sandboxes that other hosts have by now, as the directory tells: also while the storage,
 * which is what counts, does not answer this host any more, because it was shut out.
 */
export async function takenOverElsewhere<R extends { readonly row: Row }>(
  { hostId, sandboxes }: { readonly hostId: string; readonly sandboxes: Pick<Sandboxes, 'get'> },
  had: readonly R[],
): Promise<TakenOverElsewhere<R>[]> {
  const found = had.map(async (of) => {
    const { id, accountId, revision } = of.row;
    const record = await sandboxes.get(accountId, id);
    // This host's own newest state may not be published yet.
    const isTaken = record !== undefined && record.hostId !== hostId && record.revision > revision;
    return isTaken ? [{ of, by: record.hostId }] : [];
  });
  return (await Promise.all(found)).flat();
}
