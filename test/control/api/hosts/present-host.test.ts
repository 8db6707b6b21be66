import test from 'ava';
import { presentHost } from '../../../../control/api/hosts/present-host.ts';
import type { HostReport } from '../../../../shared/schemas/host.ts';

const idle: HostReport = {
  ...{ version: '1.0.0', order: 'drained', vcpus: 8, vcpusFree: 8, memoryMib: 1, memoryMibFree: 1 },
  ...{ storageFreeBytes: 1, execSlots: 8, execsRunning: 0, execsWaiting: 0 },
  ...{ sandboxes: 1, sandboxesActive: 0, disks: 0, disksHeld: 0, pausedKeepDisks: false },
  seenAt: 0,
};

const stateWith = (figures: Partial<HostReport>): string => {
  const report = { ...idle, seenAt: Date.now(), ...figures };
  const entry = { hostId: 'host-0a1b2c3d4e5f', report, order: 'drained' as const };
  const host = presentHost(entry, 'local-test');
  return `${host.state} ${Object.keys(host).includes('pausedKeepDisks')}`;
};

test('a drained host has nothing attached but the disks that paused containers keep', (t) => {
  t.is(stateWith({}), 'drained false');
  t.is(stateWith({ disks: 1 }), 'draining false');
  t.is(stateWith({ disks: 1, disksHeld: 1 }), 'draining false', 'they are being given up');
  t.is(stateWith({ disks: 1, disksHeld: 1, pausedKeepDisks: true }), 'drained false');
  t.is(stateWith({ disks: 2, disksHeld: 1, pausedKeepDisks: true }), 'draining false');
  t.is(stateWith({ sandboxesActive: 1 }), 'draining false');
  t.is(stateWith({ order: 'up' }), 'draining false', 'the host has not heard of it');
});
