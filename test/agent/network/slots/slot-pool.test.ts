import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFile } from 'node:fs/promises';
import test from 'ava';
import { planSlot } from '../../../../agent/network/slots/slot.ts';
import { SlotHost, withinSlot } from '../../../helpers/slots.ts';
import { waitFor } from '../../../helpers/wait.ts';

const withoutNumbers = (text: string): string => text.replaceAll(/^\d+: /gmu, '');
const indexOf = ({ index }: { index: number }): number => index;

test('a burst of leases: everybody gets another slot, and it is made', async (t) => {
  await using host = new SlotHost();
  const pool = await host.openPool({ slotsMax: 32, readyMax: 4 });
  const plans = await Promise.all(Array.from({ length: 20 }, () => pool.lease()));
  t.deepEqual(
    plans.map(indexOf),
    Array.from({ length: 20 }, (_, index) => index),
  );
  for (const plan of plans) {
    t.deepEqual(plan, planSlot(host.hostId, plan.index));
    const shown = await withinSlot(plan, 'ip', '-oneline', 'address', 'show', plan.tap);
    t.true(shown.includes(`inet ${plan.gatewayAddress}/${plan.prefixBits} `), shown);
    t.false(shown.includes('inet6'), shown);
    t.is((await withinSlot(plan, 'cat', '/proc/sys/net/ipv4/ip_forward')).trim(), '0');
  }
});

test('when all are leased the next one is refused, until one is released', async (t) => {
  await using host = new SlotHost();
  const pool = await host.openPool({ slotsMax: 3, readyMax: 8 });
  const plans = await Promise.all([pool.lease(), pool.lease(), pool.lease()]);
  t.deepEqual(plans.map(indexOf), [0, 1, 2]);
  await t.throwsAsync(pool.lease(), { code: 'no_capacity' });
  await pool.release(1);
  t.is((await pool.lease()).index, 1);
  await t.throwsAsync(pool.lease(), { code: 'no_capacity' });
});

test('nothing of one lease is there for the next', async (t) => {
  await using host = new SlotHost();
  const pool = await host.openPool({ slotsMax: 1, readyMax: 1 });
  const slot = await pool.lease();
  const fresh = await withinSlot(slot, 'ip', 'address');
  const neighbours = await withinSlot(slot, 'ip', 'neighbour');
  await withinSlot(slot, 'ip', 'tuntap', 'add', 'left', 'mode', 'tap');
  const neighbour = [slot.guestAddress, 'lladdr', slot.gatewayMac, 'dev', slot.tap];
  await withinSlot(slot, 'ip', 'neighbour', 'replace', ...neighbour, 'nud', 'permanent');
  await withinSlot(slot, '/usr/sbin/nft', 'flush ruleset');
  await pool.release(slot.index);
  const next = await pool.lease();
  t.is(next.index, slot.index);
  const shown = await withinSlot(next, 'ip', 'address');
  t.is(withoutNumbers(shown), withoutNumbers(fresh));
  t.is(await withinSlot(next, 'ip', 'neighbour'), neighbours);
  t.regex(await withinSlot(next, '/usr/sbin/nft', 'list ruleset'), /hook output .* policy drop/u);
});

test('releasing twice, or what nobody leased, does nothing', async (t) => {
  await using host = new SlotHost();
  const pool = await host.openPool({ readyMax: 1 });
  const { index } = await pool.lease();
  await Promise.all([pool.release(index), pool.release(index)]);
  await pool.release(index);
  await pool.release(7);
  const [one, other] = await Promise.all([pool.lease(), pool.lease()]);
  t.not(one.index, other.index);
});

test('two hosts of one machine leave each other alone', async (t) => {
  await using one = new SlotHost();
  await using other = new SlotHost();
  const pools = await Promise.all([one.openPool(), other.openPool()]);
  const plans = await Promise.all(pools.map((pool) => pool.lease()));
  t.deepEqual(plans.map(indexOf), [0, 0]);
  t.not(plans[0]?.namespace, plans[1]?.namespace);
  await pools[0]?.release(0);
  await pools[0]?.close();
  t.deepEqual(await one.present(), []);
  await one.openPool({ readyMax: 0 });
  t.true((await other.present()).includes(0));
});

test('closing removes what nobody leased, however far it was made', async (t) => {
  await using host = new SlotHost();
  const pool = await host.openPool({ readyMax: 4 });
  const { index } = await pool.lease();
  await pool.close();
  t.deepEqual(await host.present(), [index]);
});

test('a pool that was killed: the journal says which of its slots stay', async (t) => {
  await using host = new SlotHost();
  const fixture = new URL('../../../fixtures/lease-slots.ts', import.meta.url).pathname;
  const child = spawn(process.execPath, [fixture, host.hostId, '4'], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const exited = once(child, 'exit');
  const [printed] = (await once(child.stdout, 'data')) as [Buffer];
  t.deepEqual(JSON.parse(printed.toString()), [0, 1, 2, 3]);
  child.kill('SIGKILL');
  await exited;

  const kept = planSlot(host.hostId, 2);
  await withinSlot(kept, 'ip', 'tuntap', 'add', 'mark', 'mode', 'tap');
  const pool = await host.openPool({ leased: [2], readyMax: 0 });
  t.deepEqual(await host.present(), [2]);
  t.deepEqual(await pool.take(2), kept);
  t.regex(await withinSlot(kept, 'ip', 'link'), /mark/u, 'it was not made again');
  t.is((await pool.lease()).index, 0);
  await pool.release(2);
  t.deepEqual(await host.present(), [0]);
});

test('a leased slot that is gone or broken is made again when it is asked for', async (t) => {
  await using host = new SlotHost();
  const first = await host.openPool({ readyMax: 0 });
  const plans = [await first.lease(), await first.lease(), await first.lease()];
  const [broken, open, gone] = plans;
  if (broken === undefined || open === undefined || gone === undefined) return t.fail();
  await first.close();
  await withinSlot(broken, 'ip', 'link', 'delete', broken.tap);
  await withinSlot(open, '/usr/sbin/nft', 'flush ruleset');
  await withinSlot(open, 'ip', 'tuntap', 'add', 'mark', 'mode', 'tap');
  await withinSlot(gone, 'ip', 'netns', 'delete', gone.namespace);

  const pool = await host.openPool({ leased: [0, 1, 2], readyMax: 0 });
  await Promise.all([0, 1, 2].map((index) => pool.take(index)));
  for (const plan of plans) {
    t.regex(await withinSlot(plan, 'ip', 'address', 'show', plan.tap), /inet /u);
    t.regex(await withinSlot(plan, '/usr/sbin/nft', 'list ruleset'), /hook input .* policy drop/u);
  }
  t.regex(await withinSlot(open, 'ip', 'link'), /mark/u, 'a machine may be using it');
});

test('a slot that cannot be made: its lease fails, and what was in its way is cleared', async (t) => {
  await using host = new SlotHost();
  const pool = await host.openPool({ slotsMax: 1, readyMax: 0 });
  const { index, namespace } = await pool.lease();
  await pool.release(index);
  // A crash within `ip netns add` leaves such a file.
  await writeFile(`/run/netns/${namespace}`, '');
  await t.throwsAsync(pool.lease(), { message: /File exists/u });
  const plan = await waitFor('a slot', () => pool.lease().catch(() => undefined));
  t.deepEqual(plan, planSlot(host.hostId, index));
});

test('what a crash left of a slot that was being made is cleared at the next start', async (t) => {
  await using host = new SlotHost();
  const first = await host.openPool({ readyMax: 0 });
  const { namespace } = await first.lease();
  await first.release(0);
  await writeFile(`/run/netns/${namespace}`, '');
  const pool = await host.openPool({ readyMax: 0 });
  t.deepEqual(await host.present(), []);
  t.is((await pool.lease()).index, 0);
});
