import test from 'ava';
import { RecentPlacements } from '../../../../control/region/recent-placements.ts';
import { notePlacement, wishesOf } from '../../../../control/api/sandboxes/sandbox-wishes.ts';
import { REGION_LIMITS } from '../../../../control/region/limits.ts';

const sandbox = (accountId: string, image?: string) => ({
  ...{ accountId, vcpuCount: 1, memSizeMib: 512 },
  ...(image === undefined ? {} : { image: { reference: image } }),
});
const need = { memoryMib: 512, vcpus: 1 };
const wishes = (placements: RecentPlacements, accountId: string, image?: string) =>
  wishesOf(placements, sandbox(accountId, image), { need, disks: [], canBeOn: () => true });

test('the sandboxes of an account are spread: each one that is on a host adds to its cost', (t) => {
  const placements = new RecentPlacements();
  for (const hostId of ['a', 'a', 'b']) notePlacement(placements, sandbox('one'), hostId);
  const { costOf } = wishes(placements, 'one');
  t.true(costOf('a') > costOf('b'));
  t.true(costOf('b') > costOf('c'));
  const other = wishes(placements, 'other');
  t.is(other.costOf('a'), other.costOf('b'));
});

test('a host that was given the image lately is likely to have it; for the default image none is', (t) => {
  const placements = new RecentPlacements();
  notePlacement(placements, sandbox('one', 'debian:13'), 'a');
  const { likely, costOf } = wishes(placements, 'other', 'debian:13');
  t.deepEqual(likely, ['a']);
  t.true(costOf('a') < costOf('b'));
  t.deepEqual(wishes(placements, 'other', 'debian:12').likely, []);
  t.deepEqual(wishes(placements, 'other').likely, []);
});

test('a host on which a sandbox of the shape was started lately is better than one without', (t) => {
  const placements = new RecentPlacements();
  notePlacement(placements, sandbox('one'), 'a');
  const { costOf } = wishes(placements, 'other');
  t.true(costOf('a') < costOf('b'));
});

test('the memory is bounded: the last hosts of each image or shape, and the latest of these', (t) => {
  const placements = new RecentPlacements();
  for (let count = 0; count <= REGION_LIMITS.placementsRememberedMax; count += 1) {
    placements.note('first', `host-${count}`);
  }
  t.is(placements.hostsOf('first').length, REGION_LIMITS.placementsRememberedMax);
  t.is(placements.countOf('first', 'host-0'), 0);
  for (let count = 0; count < REGION_LIMITS.placementKeysRememberedMax; count += 1) {
    placements.note(`key-${count}`, 'host');
  }
  t.deepEqual(placements.hostsOf('first'), []);
  t.deepEqual(placements.hostsOf('key-0'), ['host']);
});
