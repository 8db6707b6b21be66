/*
 * What gets through a slot and the router, seen from a namespace in the guest's place, with an
 * outside that has servers and a resolver.
 */
import test from 'ava';
import { Outside } from '../../helpers/outside.ts';
import { RoutedHost } from '../../helpers/routed-host.ts';
import { probe, TestPeer, withinSlot } from '../../helpers/slots.ts';

test('a guest reaches the outside by name, over TCP and UDP, as one of the host’s', async (t) => {
  await using outside = await Outside.open();
  await outside.serve('tcp-echo', 7000);
  await outside.serve('udp-echo', 7001);
  await using host = await RoutedHost.open(outside);
  const slot = await host.pool.lease();
  await using peer = await TestPeer.on(slot);
  const talk = (...args: string[]): Promise<string> => peer.run('talk.py', ...args);

  t.is(await talk('tcp', outside.address(0), '7000', 'hello'), `${outside.hostAddress} hello`);
  t.is(await talk('udp', outside.address(0), '7001', 'hello'), `${outside.hostAddress} hello`);
  const resolver = slot.gatewayAddress;
  t.is(await talk('dns', resolver, 'udp', 'outside.test'), outside.address(0));
  t.is(await talk('dns', resolver, 'tcp', 'outside.test'), outside.address(0));
  t.is(await talk('dns', resolver, 'udp', 'nothing.test'), 'NXDOMAIN');
  t.deepEqual(await probe(peer, `${outside.address(0)}:7000`), ['connected']);
  t.is((await withinSlot(slot, 'cat', '/proc/sys/net/ipv4/ip_forward')).trim(), '1');
});
