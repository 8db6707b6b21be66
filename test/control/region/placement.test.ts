import test from 'ava';
import type { Host, KnownHosts } from '../../../control/region/known-hosts.ts';
import {
  rankHosts,
  rankSandboxHosts,
  type SandboxWishes,
} from '../../../control/region/placement.ts';
import { needOf } from '../../../shared/directory/sandbox-need.ts';
import { REGION_LIMITS } from '../../../control/region/limits.ts';

type Changes = Partial<Host['load']['sandboxes']> & {
  readonly draining?: boolean;
  readonly cordoned?: boolean;
};

const host = (
  hostId: string,
  { draining = false, cordoned = false, ...sandboxes }: Changes = {},
): Host => ({
  hostId,
  publicUrl: '',
  internalUrl: '',
  jobsPending: 0,
  load: {
    execSlots: 1,
    execsRunning: 0,
    execsWaiting: 0,
    storageLow: false,
    ...{ draining, cordoned },
    sandboxes: {
      isEnabled: true,
      memoryMib: 8192,
      memoryMibUsed: 0,
      vcpus: 8,
      vcpusUsed: 0,
      isLow: false,
      ...sandboxes,
    },
  },
});
const need = { memoryMib: 2048, vcpus: 2 };

/** In the order in which they would be drawn; counts how many were. */
class Drawn implements KnownHosts {
  drawn = 0;
  readonly #hosts: readonly Host[];

  constructor(hosts: readonly Host[]) {
    this.#hosts = hosts;
  }

  find(hostId: string): Host | undefined {
    return this.#hosts.find((each) => each.hostId === hostId);
  }

  *inRandomOrder(): IteratorObject<Host, undefined> {
    for (const each of this.#hosts) {
      this.drawn += 1;
      yield each;
    }
  }
}

const wishes = (changes: Partial<SandboxWishes> = {}): SandboxWishes => ({
  ...{ need, canBeOn: () => true, diskHosts: [], likely: [], costOf: () => 0 },
  ...changes,
});

const rank = (hosts: KnownHosts, changes: Partial<SandboxWishes> = {}): string[] =>
  rankSandboxHosts(hosts, wishes(changes)).map(({ hostId }) => hostId);

const ranks = test.macro((t, hosts: readonly Host[], expected: readonly string[]) => {
  t.deepEqual(rank(new Drawn(hosts)), expected);
});

test(
  'sandbox hosts: the one with the smallest share of memory in use first',
  ranks,
  [
    host('half', { memoryMibUsed: 4096 }),
    host('empty'),
    host('large', { memoryMib: 65_536, memoryMibUsed: 8192 }),
  ],
  ['large', 'empty', 'half'],
);
test(
  'sandbox hosts: the share counts with the new sandbox in it',
  ranks,
  [host('small', { memoryMib: 2048 }), host('large', { memoryMibUsed: 2048 })],
  ['large', 'small'],
);
test(
  'sandbox hosts: with the same share of memory the smaller share of vCPUs first',
  ranks,
  [host('a', { vcpusUsed: 4 }), host('b', { vcpusUsed: 1 })],
  ['b', 'a'],
);
test(
  'sandbox hosts: those that are low, draining, too small or without sandboxes are left out',
  ranks,
  [
    host('small', { memoryMib: 2047 }),
    host('narrow', { vcpus: 1 }),
    host('low', { isLow: true }),
    host('draining', { draining: true }),
    host('disabled', { isEnabled: false }),
    host('fit'),
  ],
  ['fit'],
);
test(
  'sandbox hosts: those that had no capacity a moment ago come last',
  ranks,
  [
    host('no-memory', { memoryMibUsed: 6145 }),
    host('no-vcpus', { memoryMibUsed: 6144, vcpusUsed: 7 }),
    host('full-now', { memoryMibUsed: 6144, vcpusUsed: 6 }),
  ],
  ['full-now', 'no-vcpus', 'no-memory'],
);

const refuses = test.macro((t, hosts: readonly Host[], code: string) => {
  t.throws(() => rank(new Drawn(hosts)), { code });
});

test('sandbox hosts: none is linked', refuses, [], 'no_capacity');
test(
  'sandbox hosts: none runs sandboxes',
  refuses,
  [host('a', { isEnabled: false, memoryMib: 0, vcpus: 0 })],
  'not_enabled',
);
test(
  'sandbox hosts: none has capacity',
  refuses,
  [host('a', { memoryMib: 1024 }), host('b', { isLow: true }), host('c', { isEnabled: false })],
  'no_capacity',
);
test('sandbox hosts: one without any capacity', refuses, [host('a', { vcpus: 0 })], 'no_capacity');
test(
  'sandbox hosts: one that is large enough takes none now',
  refuses,
  [host('a', { memoryMib: 1024 }), host('b', { draining: true })],
  'no_capacity',
);

test('sandbox hosts: none is large enough, and the caller is told what would be', (t) => {
  const refusal = (asked: SandboxWishes['need'], ...hosts: Host[]): string | undefined =>
    t.throws(() => rank(new Drawn(hosts), { need: asked }), { code: 'no_capacity' })?.message;
  const [memory, processors] = [
    host('memory', { vcpus: 2 }),
    host('processors', { memoryMib: 4096 }),
  ];
  t.is(
    refusal(needOf({ vcpuCount: 4, memSizeMib: 4096 }), memory, processors),
    'no host of this region can hold a sandbox with vcpu_count 4 and mem_size_mib 4096; ' +
      'the largest that one can hold has vcpu_count 4 and mem_size_mib 3840',
  );
  t.is(
    refusal(needOf({ vcpuCount: 16, memSizeMib: 1024 }), memory, processors),
    'no host of this region can hold a sandbox with vcpu_count 16 and mem_size_mib 1024; ' +
      'the largest that one can hold has vcpu_count 8 and mem_size_mib 3808',
  );
  t.is(
    refusal(needOf({ vcpuCount: 1, memSizeMib: 256 }), host('tiny', { memoryMib: 400 })),
    'no host of this region can hold a sandbox with vcpu_count 1 and mem_size_mib 256',
  );
});

/** A cost for one host, or for all others. */
const only = (one: string, cost: number) => (hostId: string) => (hostId === one ? cost : 0);
const allBut = (one: string, cost: number) => (hostId: string) => (hostId === one ? 0 : cost);

const many = (count: number, changes: Changes = {}): Host[] =>
  Array.from({ length: count }, (_, index) => host(`host-${index}`, changes));

test('sandbox hosts: only some of those with capacity are looked at', (t) => {
  const hosts = new Drawn(many(1000));
  t.is(rank(hosts).length, REGION_LIMITS.placementCandidates);
  t.is(hosts.drawn, REGION_LIMITS.placementCandidates);
});

test('sandbox hosts: the one host of a full region that has capacity is found, and comes first', (t) => {
  const hosts = new Drawn([...many(999, { memoryMibUsed: 8192 }), host('roomy')]);
  t.is(rank(hosts)[0], 'roomy');
});

test('sandbox hosts: a host that has some of the disks is found among many, and comes first', (t) => {
  const hosts = new Drawn([...many(100), host('one', { memoryMibUsed: 4096 }), host('two')]);
  const [first, second] = rank(hosts, { diskHosts: ['two', 'one', 'one'] });
  t.deepEqual([first, second], ['one', 'two']);
});

test('sandbox hosts: one without capacity gains nothing from the disks that it has', (t) => {
  const hosts = new Drawn([host('full', { memoryMibUsed: 8192 }), host('roomy')]);
  t.deepEqual(rank(hosts, { diskHosts: ['full'] }), ['roomy', 'full']);
});

test('sandbox hosts: one that likely has the image is found among many', (t) => {
  const hosts = new Drawn([...many(100), host('has-image')]);
  t.is(
    rank(hosts, {
      ...{ likely: ['gone', 'has-image'] },
      costOf: allBut('has-image', 0.25),
    })[0],
    'has-image',
  );
});

test('sandbox hosts: the cost of a host counts like the same share of it in use', (t) => {
  const hosts = new Drawn([host('empty'), host('half', { memoryMibUsed: 4096 })]);
  t.deepEqual(rank(hosts, { costOf: only('empty', 0.4) }), ['empty', 'half']);
  t.deepEqual(rank(hosts, { costOf: only('empty', 0.6) }), ['half', 'empty']);
});

test('sandbox hosts: those on which it cannot be are left out', (t) => {
  const hosts = new Drawn([host('a'), host('b')]);
  t.deepEqual(rank(hosts, { canBeOn: ({ hostId }) => hostId === 'b' }), ['b']);
  t.throws(() => rank(hosts, { canBeOn: () => false }), { code: 'not_enabled' });
});

test('hosts for disks: the lease holder of most of them first, without a look at any other', (t) => {
  const hosts = new Drawn(many(10));
  const ranked = rankHosts(hosts, ['host-3', 'host-7', undefined, 'host-7']);
  t.deepEqual(
    ranked.map(({ hostId }) => hostId),
    ['host-7', 'host-3'],
  );
  t.is(hosts.drawn, 0);
});

test('hosts for disks: without a lease holder the least loaded of a few random ones', (t) => {
  const busy = { ...host('busy'), jobsPending: 1 };
  const hosts = new Drawn([host('draining', { draining: true }), busy, ...many(1000)]);
  t.is(rankHosts(hosts, [])[0]?.hostId, 'host-0');
  t.is(hosts.drawn, REGION_LIMITS.placementCandidates + 1);
});

test('hosts for disks: one that is away or takes no work is refused', (t) => {
  const hosts = new Drawn([host('draining', { draining: true })]);
  t.throws(() => rankHosts(hosts, ['gone']), { code: 'unavailable' });
  t.throws(() => rankHosts(hosts, ['draining']), { code: 'unavailable' });
  t.throws(() => rankHosts(hosts, []), { code: 'no_capacity' });
});

const idsOf = (hosts: readonly Host[], leaseHolders: readonly (string | undefined)[]): string[] =>
  rankHosts(new Drawn(hosts), leaseHolders).map(({ hostId }) => hostId);

test('hosts for disks: a cordoned one gets none, and comes last for its own', (t) => {
  const closed = host('closed', { cordoned: true });
  const both = [closed, host('open')];
  t.deepEqual(idsOf(both, [undefined]), ['open']);
  t.deepEqual(idsOf(both, ['closed']), ['open', 'closed']);
  t.deepEqual(idsOf(both, ['closed', 'open']), ['open', 'closed']);
  t.deepEqual(idsOf([closed], ['closed']), ['closed']);
  t.throws(() => idsOf([closed], [undefined]), { code: 'no_capacity' });
});
