import { isIPv4 } from 'node:net';
import test from 'ava';
import * as fc from '../../../helpers/fast-check.ts';
import { planSlot, slotOfNamespace } from '../../../../agent/network/slots/slot.ts';
import { LIMITS } from '../../../../shared/limits.ts';

const hostIds = fc
  .array(fc.integer({ min: 0, max: 15 }), { minLength: 12, maxLength: 12 })
  .map((digits) => `host-${digits.map((digit) => digit.toString(16)).join('')}`);
const numberOf = (address: string): number =>
  Buffer.from(address.split('.').map(Number)).readUInt32BE();
const indexes = fc.integer({ min: 0, max: LIMITS.slotsPerHostMax - 1 });

test('a namespace tells its slot, to its own host only', (t) => {
  fc.assert(
    fc.property(hostIds, hostIds, indexes, (hostId, otherId, index) => {
      const { namespace } = planSlot(hostId, index);
      t.is(slotOfNamespace(hostId, namespace), index);
      if (otherId !== hostId) t.is(slotOfNamespace(otherId, namespace), undefined);
    }),
  );
});

test('no two slots have the same namespace', (t) => {
  fc.assert(
    fc.property(hostIds, hostIds, indexes, indexes, (hostId, otherId, index, otherIndex) => {
      const isSame = hostId === otherId && index === otherIndex;
      t.is(planSlot(hostId, index).namespace === planSlot(otherId, otherIndex).namespace, isSame);
    }),
  );
});

test('a name that is not exactly that of a slot is taken for none', (t) => {
  const hostId = 'host-0123456789ab';
  const { namespace } = planSlot(hostId, 1);
  const max = LIMITS.slotsPerHostMax;
  const last = planSlot(hostId, max - 1).namespace;
  t.is(slotOfNamespace(hostId, last), max - 1);
  const others = ['', 'berth-', 'berth-test-0123abcd', namespace.slice(0, -1), `${namespace} `];
  const numbers = ['01', '-1', '1.5', '0x1', '1e1', ' 1', String(max), '99999999999999999999'];
  const changed = numbers.map((digits) => namespace.replace(/\d$/u, digits));
  for (const name of [...others, ...changed]) {
    t.is(slotOfNamespace(hostId, name), undefined, name);
  }
  fc.assert(
    fc.property(fc.string(), (name) => {
      if (!name.startsWith('berth-')) t.is(slotOfNamespace(hostId, name), undefined);
    }),
  );
});

test('there are no slots beyond the bounds', (t) => {
  for (const index of [-1, 0.5, NaN, Infinity, LIMITS.slotsPerHostMax]) {
    t.throws(() => planSlot('host-0123456789ab', index), { message: /there is no slot/u });
  }
});

test('guest and gateway are neighbours with names that the kernel takes', (t) => {
  const plan = planSlot('host-0123456789ab', 0);
  t.true(isIPv4(plan.guestAddress) && isIPv4(plan.gatewayAddress));
  const subnet = (address: string): number => numberOf(address) >>> (32 - plan.prefixBits);
  t.is(subnet(plan.guestAddress), subnet(plan.gatewayAddress));
  t.not(plan.guestAddress, plan.gatewayAddress);
  t.not(plan.guestMac, plan.gatewayMac);
  for (const mac of [plan.guestMac, plan.gatewayMac]) {
    t.is(Number.parseInt(mac.slice(0, 2), 16) & 0b11, 0b10, 'locally administered, to one');
  }
  t.true(plan.tap.length <= 15);
});
