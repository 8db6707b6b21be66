import test from 'ava';
import type { Host } from '../../../control/dispatch/agent-hub.ts';
import { rankSandboxHosts } from '../../../control/dispatch/placement.ts';

type Changes = Partial<Host['load']['sandboxes']> & { readonly draining?: boolean };

const host = (hostId: string, { draining = false, ...sandboxes }: Changes = {}): Host => ({
  hostId,
  publicUrl: '',
  internalUrl: '',
  jobsPending: 0,
  load: {
    execSlots: 1,
    execsRunning: 0,
    execsWaiting: 0,
    storageLow: false,
    draining,
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

const ranks = test.macro((t, hosts: readonly Host[], expected: readonly string[]) => {
  t.deepEqual(rankSandboxHosts(hosts, need), expected);
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
  t.throws(() => rankSandboxHosts(hosts, need), { code });
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
