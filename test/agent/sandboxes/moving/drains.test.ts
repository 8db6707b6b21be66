/*
 * Drains that cannot go straight on: the host is busy with a sandbox, the operator changes their
 * mind, or no other host takes over what is released. Each ends in a state that callers and
 * operators are told.
 */
import test from 'ava';
import { newSandboxId } from '../../../../shared/ids.ts';
import {
  check,
  checkNothingLeft,
  type Known,
  make,
  makeAll,
  remove,
  rested,
} from '../../../helpers/moved-sandboxes.ts';
import type { MovingHost } from '../../../helpers/moving-agents.ts';
import { MovingRegion } from '../../../helpers/moving-region.ts';
import { waitFor } from '../../../helpers/wait.ts';

const { serial } = test;

interface Failing {
  readonly adopt: number;
  readonly start: number;
  readonly give: number;
}
const failingOf = (host: MovingHost): Promise<Failing> => host.ask({ call: 'failing' });
const hold = (host: MovingHost, point: string | undefined): Promise<unknown> =>
  host.ask({ call: 'hold', point });
const takeReached = (host: MovingHost): Promise<string[]> => host.ask({ call: 'takeReached' });
const activeAt = async ({ directory }: MovingRegion, { hostId }: MovingHost): Promise<number> =>
  (await directory.hosts.get(hostId))?.report.sandboxesActive ?? -1;

serial(
  'a sandbox that starts, and one that is copied, are drained once that is over',
  async (t) => {
    await using region = await MovingRegion.open({ hosts: 2 });
    const [giver, taker] = region.hosts as [MovingHost, MovingHost];
    const source = await make(region, giver);
    const [starting, copy] = [newSandboxId(), newSandboxId()];
    for (const [point, id, begin] of [
      ['before boot guest', starting, () => giver.ask({ call: 'create', id: starting })],
      ['before copy disk', copy, () => giver.ask({ call: 'fork', id: copy, from: source.id })],
    ] as const) {
      await takeReached(giver);
      await hold(giver, point);
      const begun = begin();
      await waitFor(point, async () => (await takeReached(giver)).includes(point));
      await region.order(giver, 'drained');
      await region.follows(giver, 'drained');
      t.true((await activeAt(region, giver)) > 0, 'it is draining');
      t.is(await region.hostOf(source.id), giver.hostId);
      await hold(giver, undefined);
      await begun.catch(() => undefined); // The copy itself is not started any more.
      await rested(region, source.id, taker);
      if (id === starting) t.is((await rested(region, id, taker)).row.state, 'paused');
      await waitFor('the end', async () => (await activeAt(region, giver)) === 0);
      await region.order(giver, 'up');
      await region.follows(giver, 'up');
      if (id === copy) break;
      await region.order(taker, 'drained');
      await rested(region, source.id, giver);
      await rested(region, starting, giver);
      await region.order(taker, 'up');
      await giver.ask({ call: 'act', id: source.id, action: 'resume' });
    }
    // No host has a row of one that is on its way.
    for (const id of [starting, copy]) {
      if ((await region.hostOf(id)) === undefined) continue;
      const { host } = await rested(region, id);
      await remove(host, id);
    }
    await check(t, region, source, taker);
    await checkNothingLeft(t, region);
  },
);

serial(
  'a drain that is cancelled releases nothing more, and leaves each sandbox at one host',
  async (t) => {
    await using region = await MovingRegion.open({ hosts: 3 });
    const [giver, taker, third] = region.hosts as [MovingHost, MovingHost, MovingHost];
    // The end of its pause, and the release of the others.
    for (const point of [
      'before finish checkpoint',
      'before release directory',
      'after release directory',
    ]) {
      const probe = await make(region, third, 'pause');
      await region.order(third, 'cordoned');
      await region.follows(third, 'cordoned');
      const all = await makeAll(region, giver);
      await takeReached(giver);
      await hold(giver, point);
      await region.order(giver, 'drained');
      await waitFor(point, async () => (await takeReached(giver)).includes(point));
      await region.order(giver, 'up');
      await region.follows(giver, 'up');
      await takeReached(giver);
      await hold(giver, undefined);
      await takesAgain(region, { giver, taker, third }, probe);
      const isOneUnderWay = point.endsWith('release directory');
      const reached = await takeReached(giver);
      if (isOneUnderWay) t.false(reached.includes('before release directory'), point);
      for (const known of all) {
        const { host, row } = await rested(region, known.id);
        t.true(
          known.wasRunning ? ['running', 'paused'].includes(row.state) : row.state !== 'failed',
        );
        await check(t, region, known, host);
      }
      await checkNothingLeft(t, region);
    }
    t.true(taker.isRunning);
  },
);

serial('a host that goes down takes nothing more from others', async (t) => {
  await using region = await MovingRegion.open({ hosts: 2, releasedMs: 500 });
  const [giver, ending] = region.hosts as [MovingHost, MovingHost];
  const known = await make(region, giver, 'pause');
  const running = await make(region, ending);
  await ending.ask({ call: 'stopAll' });
  t.is((await rested(region, running.id, ending)).row.state, 'paused');
  await region.order(giver, 'drained');
  await waitFor('what is not taken', async () => (await failingOf(giver)).give === 1);
  await region.order(giver, 'up');
  for (const [{ id }, host] of [
    [known, giver],
    [running, ending],
  ] as const) {
    await rested(region, id, host);
    await remove(host, id);
  }
  await checkNothingLeft(t, region);
});

serial(
  'sandboxes that no other host takes stay, can be read, and go as soon as one takes them',
  async (t) => {
    await using region = await MovingRegion.open({
      ...{ hosts: 2, memoryMib: [65_536, 128], releasedMs: 500 },
    });
    const [giver, small] = region.hosts as [MovingHost, MovingHost];
    const all = await makeAll(region, giver);
    await region.order(giver, 'drained');
    await waitFor('what is not taken', async () => (await failingOf(giver)).give === all.length);
    for (const { id, said } of all) {
      const { host, row } = await rested(region, id);
      t.is(host, giver);
      t.true(['paused', 'stopped'].includes(row.state));
      t.deepEqual(await execOf(giver, id, said.id), said);
      const action = row.state === 'paused' ? 'resume' : 'start';
      const refused = waitFor('the answer', async () => {
        const error = await giver.ask({ call: 'act', id, action }).catch(codeOf);
        return error !== 'unavailable' && error;
      });
      t.is(await refused, 'no_capacity');
    }
    t.is(await activeAt(region, giver), 0, 'it is drained');
    const log = await giver.readLog();
    for (const { id } of all) t.regex(log, new RegExp(`${id}.*sandbox:notTaken`, 'u'));
    await small.grow(65_536);
    for (const { id } of all) await rested(region, id, small);
    await waitFor('nothing to be told', async () => (await failingOf(giver)).give === 0);
    for (const known of all) await check(t, region, known, small);
    await checkNothingLeft(t, region);
  },
);

serial('a sandbox comes back when the journal could not record its release', async (t) => {
  await using region = await MovingRegion.open({ hosts: 2, releasedMs: 500 });
  const [giver, other] = region.hosts as [MovingHost, MovingHost];
  await other.ask({ call: 'takes', takes: false });
  const known = await make(region, giver, 'pause');
  await giver.ask({ call: 'fail', point: 'before journal released' });
  await region.order(giver, 'drained');
  await waitFor('its return', async () => (await failingOf(giver)).give === 1);
  t.regex(await giver.readLog(), /sandbox:releaseFailed/u);
  t.is((await rested(region, known.id)).host, giver);
  const refused = waitFor('the answer', async () => {
    const error = await giver.ask({ call: 'act', id: known.id, action: 'resume' }).catch(codeOf);
    return error !== 'unavailable' && error;
  });
  t.is(await refused, 'no_capacity', 'it is there');
  await other.ask({ call: 'takes', takes: true });
  await rested(region, known.id, other);
  await check(t, region, known, other);
  await checkNothingLeft(t, region);
});

serial('a drained host that is alone keeps its sandboxes, and says so', async (t) => {
  await using region = await MovingRegion.open({ hosts: 2 });
  const [giver, other] = region.hosts as [MovingHost, MovingHost];
  await region.order(other, 'cordoned');
  await region.follows(other, 'cordoned');
  const all = await makeAll(region, giver);
  await region.order(giver, 'drained');
  await waitFor('its word', async () => (await failingOf(giver)).give === all.length);
  t.regex(await giver.readLog(), /sandbox:noOtherHost/u);
  for (const { id } of all) t.is((await rested(region, id)).host, giver);
  await region.order(other, 'up');
  for (const { id } of all) await rested(region, id, other);
  await waitFor('nothing to be told', async () => (await failingOf(giver)).give === 0);
  for (const known of all) await check(t, region, known, other);
  await checkNothingLeft(t, region);
});

/**
 * Has a host take a sandbox. A host looks at one thing after the other, so nothing of its cancelled
 * drain is under way any more by then.
 */
async function takesAgain(
  region: MovingRegion,
  { giver, taker, third }: Record<'giver' | 'taker' | 'third', MovingHost>,
  probe: Known,
): Promise<void> {
  await region.order(taker, 'cordoned');
  await region.follows(taker, 'cordoned');
  await region.order(third, 'drained');
  await rested(region, probe.id, giver);
  await remove(giver, probe.id);
}

const codeOf = (error: unknown): string | undefined => (error as { code?: string }).code;

function execOf(host: MovingHost, id: string, execId: string): Promise<unknown> {
  return waitFor('the record', async () => {
    const execs = await host
      .ask<{ id: string }[]>({ call: 'execs', id })
      .catch((error: unknown) => {
        if (codeOf(error) === 'unavailable') return [];
        throw error;
      });
    return execs.find((exec) => exec.id === execId);
  });
}
