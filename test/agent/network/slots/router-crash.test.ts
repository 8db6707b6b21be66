/* Agents that end at any step of making or removing a router; the next one finds what they left. */
import anyTest from 'ava';
import { readFile } from 'node:fs/promises';
import { interceptFailpoints } from '../../../../agent/system/failpoint.ts';
import { Outside } from '../../../helpers/outside.ts';
import { RoutedHost } from '../../../helpers/routed-host.ts';
import { probe, TestPeer } from '../../../helpers/slots.ts';

const { serial: test } = anyTest;

/** The failpoints that the work reaches, in order. */
async function pointsOf(work: () => Promise<unknown>): Promise<string[]> {
  const points: string[] = [];
  interceptFailpoints(async (point) => void points.push(point));
  await work();
  interceptFailpoints(undefined);
  return points;
}

/** Does the work as far as this failpoint, as an agent does that ends there. */
async function crashAt(point: string, work: () => Promise<unknown>): Promise<void> {
  const reached = new Promise<void>((resolve) => {
    interceptFailpoints((each) => {
      if (each !== point) return Promise.resolve();
      resolve();
      return new Promise(() => undefined);
    });
  });
  await Promise.race([reached, work()]);
  interceptFailpoints(undefined);
}

test('an agent that ends while it makes a router: the next one has one that works', async (t) => {
  await using outside = await Outside.open();
  await outside.serve('tcp-echo', 7000);
  await using host = await RoutedHost.open(outside);
  await host.stopAgent();
  t.deepEqual(await host.left(), []);
  const points = await pointsOf(() => host.startAgent());
  await host.stopAgent();
  t.true(points.length >= 12, points.join('\n'));
  for (const point of points) {
    await crashAt(point, () => host.startAgent());
    await host.startAgent();
    const slot = await host.pool.lease();
    {
      await using peer = await TestPeer.on(slot);
      t.deepEqual(await probe(peer, `${outside.address(0)}:7000`), ['connected'], point);
    }
    await host.pool.release(slot.index);
    await host.stopAgent();
    t.deepEqual(await host.left(), [], point);
  }
});

test('an agent that ends while it removes a router: the next one leaves nothing', async (t) => {
  await using outside = await Outside.open();
  await using host = await RoutedHost.open(outside);
  const points = await pointsOf(() => host.stopAgent());
  t.deepEqual(await host.left(), []);
  for (const point of points) {
    await host.startAgent();
    t.is(await readFile('/proc/sys/net/ipv4/ip_forward', 'utf8'), '1\n');
    await crashAt(point, () => host.stopAgent());
    await host.startAgent();
    await host.stopAgent();
    t.deepEqual(await host.left(), [], point);
  }
});
