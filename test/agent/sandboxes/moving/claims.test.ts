/*
 * A host that dies in mid-taking has the sandbox in its journal, but not its commands: these are in
 * the file that the former host kept. Its next agent must not write over that file before it has
 * them.
 */
import { lstatSync, readFileSync, renameSync, rmSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import type { SandboxExecRecord } from '../../../../shared/schemas/sandbox-record.ts';
import { make, remove, rested } from '../../../helpers/moved-sandboxes.ts';
import type { MovingHost } from '../../../helpers/moving-agents.ts';
import { MovingRegion } from '../../../helpers/moving-region.ts';
import { waitFor } from '../../../helpers/wait.ts';

const { serial } = test;

for (const point of ['after journal taken', 'before journal taken execs'])
  serial(
    `commands are kept when those of a sandbox cannot be read at start (${point})`,
    async (t) => {
      await using region = await MovingRegion.open({ hosts: 2 });
      const [giver, taker] = region.hosts as [MovingHost, MovingHost];
      const { id, said } = await make(region, giver, 'pause');
      await taker.ask({ call: 'arm', armed: { point, nth: 1 } });
      await region.order(giver, 'drained');
      await waitFor('the kill', async () => !taker.isRunning);
      const vmId = region.machinesOf(taker)[0] ?? '';
      const file = join(region.directoryOf(taker, vmId), 'execs.sealed');
      const kept = readFileSync(file, 'utf8');
      renameSync(file, `${file}-away`);
      symlinkSync(`${file}-away`, file); // Refused with an error of the storage.
      await taker.start();
      await rested(region, id, taker);
      t.regex(await taker.readLog(), /sandbox:claimFailed/u);
      await taker.ask({ call: 'act', id, action: 'stop' });
      t.true(lstatSync(file).isSymbolicLink(), 'nothing has replaced it');
      t.is(readFileSync(`${file}-away`, 'utf8'), kept);
      rmSync(file);
      renameSync(`${file}-away`, file);
      await taker.ask({ call: 'act', id, action: 'start' });
      const execs = await taker.ask<SandboxExecRecord[]>({ call: 'execs', id });
      t.deepEqual(execs, [said], 'the next write has claimed them');
      await taker.kill();
      await taker.start();
      t.deepEqual(await taker.ask<SandboxExecRecord[]>({ call: 'execs', id }), [said]);
      await rested(region, id, taker);
      await remove(taker, id);
      t.is(await region.faults(), '');
    },
  );

serial('commands are kept when a host dies while it takes its own sandbox back', async (t) => {
  await using region = await MovingRegion.open({ hosts: 2, releasedMs: 500 });
  const [giver, other] = region.hosts as [MovingHost, MovingHost];
  await other.ask({ call: 'takes', takes: false });
  const { id, said } = await make(region, giver, 'pause');
  await giver.ask({ call: 'arm', armed: { point: 'after journal taken', nth: 1 } });
  await region.order(giver, 'drained');
  await waitFor('the kill', async () => !giver.isRunning);
  await region.order(giver, 'up');
  await giver.start();
  await rested(region, id, giver);
  await giver.ask({ call: 'act', id, action: 'resume' });
  t.deepEqual(await giver.ask<SandboxExecRecord[]>({ call: 'execs', id }), [said]);
  await remove(giver, id);
  t.is(await region.faults(), '');
});
