/*
 * Agents are killed with SIGKILL at each step of moving sandboxes between two hosts, at either
 * side, and come back or not: every sandbox is at one host then, with all that its callers were
 * told of. Which points there are is learnt by doing each thing once. Ordinary runs try a sample of
 * them, drawn with a seed; BERTH_TEST_FULL=1 all.
 */
import test, { type ExecutionContext } from 'ava';
import { newSandboxId } from '../../../../shared/ids.ts';
import { Random } from '../../../helpers/random.ts';
import { isFull } from '../../../helpers/full.ts';
import {
  check,
  checkNothingLeft,
  isResting,
  type Known,
  make,
  makeAll,
  remove,
  rested,
  upAgain,
} from '../../../helpers/moved-sandboxes.ts';
import type { Armed, MovingHost } from '../../../helpers/moving-agents.ts';
import { MovingRegion } from '../../../helpers/moving-region.ts';
import { waitFor } from '../../../helpers/wait.ts';

const SAMPLE = isFull ? Number.POSITIVE_INFINITY : 4;
const seed = Number(process.env['BERTH_TEST_SEED'] ?? Math.floor(Date.now() / 1000) % 100_000);
const timeoutMs = (isFull ? 60 : 10) * 60_000;

/** Each passage through a failpoint, in the order in which they were reached. */
function passages(reached: readonly string[]): Armed[] {
  const counts = new Map<string, number>();
  return reached.map((point) => {
    const nth = (counts.get(point) ?? 0) + 1;
    counts.set(point, nth);
    return { point, nth };
  });
}

function sample<T>(all: readonly T[], of: string): T[] {
  const random = new Random(seed, of);
  const drawn = all.map((each) => ({ each, order: random.fraction() }));
  return drawn
    .toSorted((a, b) => a.order - b.order)
    .slice(0, SAMPLE)
    .map(({ each }) => each);
}

const takeReached = (host: MovingHost): Promise<string[]> => host.ask({ call: 'takeReached' });
const arm = (host: MovingHost, armed: Armed | undefined): Promise<boolean> =>
  host.attempt({ call: 'arm', armed });

type Fate = 'comes back' | 'is lost';
const FATES: readonly Fate[] = ['comes back', 'is lost'];

interface Kill {
  readonly side: 'giver' | 'taker';
  readonly armed: Armed;
  readonly fate: Fate;
}

const describeKill = ({ side, armed, fate }: Kill): string =>
  `${side} killed at '${armed.point}' (${armed.nth}) ${fate}`;

type Reached = Record<Kill['side'], string[]>;

/** Lets a host be killed no more. @returns what it has reached; nothing when it was killed */
async function endOfWatch(host: MovingHost): Promise<string[]> {
  return host.isRunning && (await arm(host, undefined)) ? takeReached(host) : [];
}

/** Drains one host, with a kill on the way. */
async function drain(t: ExecutionContext, region: MovingRegion, kill?: Kill): Promise<Reached> {
  const [giver, taker] = region.hosts as [MovingHost, MovingHost];
  const all = await makeAll(region, giver);
  for (const host of region.hosts) await takeReached(host);
  const victim = kill?.side === 'taker' ? taker : giver;
  if (kill !== undefined) await arm(victim, kill.armed);
  await region.order(giver, 'drained');
  await waitFor(
    'the kill, or the end',
    async () => !victim.isRunning || haveArrived(region, all, taker),
  );
  const reached = { giver: await endOfWatch(giver), taker: await endOfWatch(taker) };
  let end = taker;
  if (!victim.isRunning && kill?.fate === 'comes back') await victim.start();
  else if (!victim.isRunning) {
    await region.fence(victim);
    if (victim === taker) {
      await region.order((end = giver), 'up');
      await region.follows(end, 'up'); // Before, it may release again what it has reclaimed.
    }
  }
  for (const known of all) await check(t, region, known, end);
  return reached;
}

async function haveArrived(
  region: MovingRegion,
  all: readonly Known[],
  at: MovingHost,
): Promise<boolean> {
  const hosts = await Promise.all(all.map(({ id }) => region.hostOf(id)));
  return hosts.every((hostId) => hostId === at.hostId);
}

const sides = ['giver', 'taker'] as const;

for (const side of sides)
  test(`a drain comes to its end wherever the ${side} is killed`, async (t) => {
    t.timeout(timeoutMs);
    await using region = await MovingRegion.open({ hosts: 2 });
    const reached = await drain(t, region);
    await checkNothingLeft(t, region);
    const kills = passages(reached[side]).flatMap((armed) =>
      FATES.map((fate) => ({ side, armed, fate })),
    );
    for (const kill of sample(kills, side)) {
      t.log(seed, describeKill(kill));
      await drain(t, region, kill);
      await checkNothingLeft(t, region);
    }
  });

/**
 * The first host loses its power and is fenced; the other one takes what it had, with a kill on the
 * way.
 * @param returning where the lost one is killed when it comes back
 */
async function lose(
  t: ExecutionContext,
  region: MovingRegion,
  { kill, returning }: { readonly kill?: Kill; readonly returning?: Armed } = {},
): Promise<Reached> {
  const [giver, taker] = region.hosts as [MovingHost, MovingHost];
  await region.order(taker, 'cordoned');
  const all = await makeAll(region, giver);
  await takeReached(taker);
  if (kill !== undefined) await arm(taker, kill.armed);
  await giver.kill();
  await region.fence(giver);
  await region.order(taker, 'up');
  const isOver = async (): Promise<boolean> => {
    if (!taker.isRunning) return true;
    if (!(await haveArrived(region, all, taker))) return false;
    return (await taker.rows()).every(isResting);
  };
  await waitFor('the kill, or the end', isOver);
  const reached = await endOfWatch(taker);
  if (!taker.isRunning && kill?.fate === 'comes back') {
    await taker.start();
    await waitFor('the rest', isOver); // Otherwise the lost one keeps what it finds when it is back.
  }
  let end = taker;
  if (!taker.isRunning) {
    // Now both are away, and the other one comes back first.
    await giver.start();
    await region.fence(taker);
    end = giver;
  } else if (returning !== undefined) {
    t.false(await giver.start(returning));
    await giver.start();
  } else await giver.start();
  const back = await takeReached(giver);
  for (const known of all) await check(t, region, known, end);
  return { giver: back, taker: reached };
}

test('a lost host’s sandboxes go on elsewhere wherever the taker is killed', async (t) => {
  t.timeout(timeoutMs);
  await using region = await MovingRegion.open({ hosts: 2 });
  const { taker, giver } = await lose(t, region);
  await checkNothingLeft(t, region);
  const kills = passages(taker).flatMap((armed) =>
    FATES.map((fate) => ({ side: 'taker', armed, fate }) as const),
  );
  for (const kill of sample(kills, 'lost')) {
    t.log(seed, describeKill(kill));
    await lose(t, region, { kill });
    await checkNothingLeft(t, region);
  }
  for (const returning of sample(passages(giver), 'returning').slice(0, isFull ? undefined : 2)) {
    t.log(
      seed,
      `the lost one is killed at '${returning.point}' (${returning.nth}) when it comes back`,
    );
    await lose(t, region, { returning });
    await checkNothingLeft(t, region);
  }
});

/** A sandbox that has moved is copied, with a kill on the way. */
async function copy(t: ExecutionContext, region: MovingRegion, kill?: Kill): Promise<Reached> {
  const [giver, taker] = region.hosts as [MovingHost, MovingHost];
  const source = await make(region, giver, 'pause');
  await region.order(giver, 'drained');
  await rested(region, source.id, taker);
  await takeReached(taker);
  if (kill !== undefined) await arm(taker, kill.armed);
  const id = newSandboxId();
  const isMade = await taker.attempt({ call: 'fork', id, from: source.id });
  const reached = { giver: await endOfWatch(giver), taker: await endOfWatch(taker) };
  let end = taker;
  if (!taker.isRunning && kill?.fate === 'comes back') await taker.start();
  else if (!taker.isRunning) {
    await region.fence(taker);
    await region.order((end = giver), 'up');
  }
  await rested(region, source.id, end);
  // A lost host may bring a copy back that nobody was told of.
  for (const host of region.hosts) await upAgain(region, host);
  const isThere = (await region.hostsOf(id)).length > 0 || (await region.hostOf(id)) !== undefined;
  if (isMade) t.true(isThere, 'it was acknowledged');
  if (isThere) {
    const { host, row } = await rested(region, id);
    if (row.state !== 'running')
      await host.ask({ call: 'act', id, action: row.state === 'paused' ? 'resume' : 'start' });
    t.is((await host.exec(id, 'cat /root/own')).stdout, `${source.id}\n`);
    await remove(host, id);
  }
  await check(t, region, source, end);
  return reached;
}

test('a sandbox that has moved is copied wholly or not at all', async (t) => {
  t.timeout(timeoutMs);
  await using region = await MovingRegion.open({ hosts: 2 });
  const { taker } = await copy(t, region);
  await checkNothingLeft(t, region);
  const kills = passages(taker).flatMap((armed) =>
    FATES.map((fate) => ({ side: 'taker', armed, fate }) as const),
  );
  for (const kill of sample(kills, 'copied')) {
    t.log(seed, describeKill(kill));
    await copy(t, region, kill);
    await checkNothingLeft(t, region);
  }
});
