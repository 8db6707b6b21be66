/*
 * Which sandboxes of this host another one has by now: only a newer record of another host says so.
 */
import test from 'ava';
import { takenOverElsewhere } from '../../../../agent/sandboxes/moving/taken-over-elsewhere.ts';
import { newAccountId, newHostId, newSandboxId } from '../../../../shared/ids.ts';
import type { SandboxRecord } from '../../../../shared/schemas/sandbox-record.ts';

const [hostId, other] = [newHostId(), newHostId()];

test('a newer record of another host counts, an older one and an own one do not', async (t) => {
  const accountId = newAccountId();
  const had = [1, 2, 3, 4].map(() => {
    const id = newSandboxId();
    return { row: { id, vmId: id, accountId, revision: 7 } };
  });
  const [taken, behind, own] = had.map(({ row }) => row.id);
  const published = new Map([
    [taken, { hostId: other, revision: 1_007 }],
    [behind, { hostId: other, revision: 6 }],
    [own, { hostId, revision: 9 }],
  ]);
  const sandboxes = {
    get: async (_: string, id: string) => published.get(id) as SandboxRecord | undefined,
  };
  const found = await takenOverElsewhere({ hostId, sandboxes }, had);
  t.deepEqual(
    found.map(({ of, by }) => [of.row.id, by]),
    [[taken, other]],
  );
});
