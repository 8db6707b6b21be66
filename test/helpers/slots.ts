import { randomBytes } from 'node:crypto';
import type { SlotPlan } from '../../agent/network/slot.ts';
import { run } from '../../agent/spawn.ts';

/** A network of its own for one machine: the gateway's address is the only thing to reach. */
export async function temporarySlot(): Promise<SlotPlan & AsyncDisposable> {
  const namespace = `berth-test-${randomBytes(4).toString('hex')}`;
  const tap = 'tap0';
  const within = (...args: string[]) => run('ip', ['-n', namespace, ...args]);
  await run('ip', ['netns', 'add', namespace]);
  await within('tuntap', 'add', tap, 'mode', 'tap');
  await within('address', 'add', '10.99.0.1/30', 'dev', tap);
  await within('link', 'set', tap, 'up');
  await within('link', 'set', 'lo', 'up');
  return {
    index: 0,
    namespace,
    tap,
    guestAddress: '10.99.0.2',
    gatewayAddress: '10.99.0.1',
    prefixBits: 30,
    guestMac: '02:00:0a:63:00:02',
    mtuBytes: 1500,
    [Symbol.asyncDispose]: async () => {
      await run('ip', ['netns', 'delete', namespace]);
    },
  };
}
