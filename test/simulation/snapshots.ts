/* Plays callers of snapshots, and checks the snapshots. */
import type { SnapshotRow } from '../../agent/system/journal/snapshot-journal.ts';
import { Snapshots } from '../../shared/directory/snapshots.ts';
import { newSandboxId } from '../../shared/ids.ts';
import { REGION } from './simulated-agent.ts';
import type { Known, KnownSnapshot } from './ledger.ts';
import type { World } from './world.ts';

/** How a call is begun, and kept until it is answered (callers.ts). */
export type Call = (world: World, what: string, about: string, work: () => Promise<void>) => void;

const SNAPSHOTS_MAX = 6;

/** A caller keeps a sandbox as it is. */
export function takeSnapshot(world: World, source: Known, call: Call): void {
  const { ledger, agent } = world;
  if (ledger.presentSnapshots.length >= SNAPSHOTS_MAX) return;
  const id = newSandboxId();
  const name = `snapshot-${ledger.snapshots.size}`;
  // Only what was there before is sure to be kept.
  const files = source.written.filter(({ path }) => !path.startsWith('/run/'));
  const { accountId } = source;
  const known: KnownSnapshot = { id, accountId, fate: 'maybe', isUnwanted: false, files };
  ledger.snapshots.set(id, known);
  const ref = { accountId, sandboxId: source.id };
  call(world, 'snapshot', id, async () => {
    try {
      const snapshot = await agent.parts.creator.snapshot(ref, { snapshotId: id, name });
      await snapshot.made;
      if (agent.isDead || known.isUnwanted) return;
      known.fate = snapshot.row.state === 'ready' ? 'there' : 'maybe';
    } catch (error) {
      if (!agent.isDead) known.fate = 'gone';
      throw error;
    }
  });
}

/** A caller deletes a snapshot, or gives it up. */
export function endSnapshot(world: World, known: KnownSnapshot, call: Call): void {
  const { agent, random } = world;
  const ref = { accountId: known.accountId, snapshotId: known.id };
  call(world, 'deleteSnapshot', known.id, async () => {
    const { fate } = known;
    known.fate = 'maybe';
    known.isUnwanted = true;
    const { registry } = agent.parts;
    if (random.integer(0, 3) === 0) return registry.discardSnapshot(ref);
    const dependents = await registry.deleteSnapshot(ref);
    if (agent.isDead) return;
    if (dependents === undefined) known.fate = 'gone';
    else if (known.fate === 'maybe') known.fate = fate;
    known.isUnwanted = false;
  });
}

/** The journal's rows, whatever became of the calls. */
export const snapshotRows = (world: World): Promise<SnapshotRow[]> =>
  world.time.wait(world.agent.parts.journal.snapshots.list());

/** Whole snapshots are whole, and what a caller was told is so. */
export async function checkSnapshots(world: World): Promise<void> {
  const { ledger, host } = world;
  const rows = await snapshotRows(world);
  for (const row of rows) {
    const known = ledger.snapshots.get(row.id);
    if (known?.fate === 'gone' && row.state !== 'deleting')
      ledger.broken.push(`snapshot ${row.id}: is gone, and is ${row.state}`);
    if (row.state !== 'ready') continue;
    if (host.wholeCheckpoint(row.id) === undefined && row.hasMemory)
      ledger.broken.push(`snapshot ${row.id}: lost its memory`);
    for (const { path, text } of known?.files ?? []) {
      if (host.readFile(row.id, path) !== text)
        ledger.broken.push(`snapshot ${row.id}: lost ${path}`);
    }
  }
  const ready = new Set(rows.filter(({ state }) => state === 'ready').map(({ id }) => id));
  for (const { id, fate } of ledger.snapshots.values()) {
    if (fate === 'there' && !ready.has(id))
      ledger.broken.push(`snapshot ${id}: was made, and is gone`);
  }
}

/** Nothing is under way: what is not ready or failed has come to its end. */
export async function checkSnapshotsAtRest(world: World): Promise<void> {
  const { ledger, redis, time } = world;
  await checkSnapshots(world);
  const rows = await snapshotRows(world);
  const directory = new Snapshots(redis, REGION);
  const accounts = [...new Set([...ledger.snapshots.values()].map(({ accountId }) => accountId))];
  const pages = await time.wait(Promise.all(accounts.map((each) => directory.list(each, {}))));
  const shown = pages.flatMap(({ items }) => items.map(({ id, status }) => `${id} ${status}`));
  const be = rows.map(({ id, state }) => `${id} ${state}`);
  if (shown.toSorted().join() !== be.toSorted().join())
    ledger.broken.push(`snapshots: the directory shows ${shown.join()} instead of ${be.join()}`);
}
