/*
 * Packets through slots and router, seen from a namespace in the guest's place, with an outside
 * that has servers and a resolver.
 */
import { once } from 'node:events';
import { createServer, type AddressInfo, Socket } from 'node:net';
import anyTest, { type TestFn } from 'ava';
import { EGRESS_PORT } from '../../../../agent/network/slots/router-plan.ts';
import { native } from '../../../../agent/native/native.ts';
import { NETWORK_LIMITS } from '../../../../agent/network/limits.ts';
import { Outside } from '../../../helpers/outside.ts';
import { RoutedHost } from '../../../helpers/routed-host.ts';
import { probe, TestPeer, withinSlot } from '../../../helpers/slots.ts';

const test = anyTest as TestFn<{ outside: Outside }>;
const nft = '/usr/sbin/nft';

test.before(async (t) => {
  const outside = await Outside.open();
  t.context = { outside };
  await outside.serve('tcp-echo', 7000);
  await outside.serve('udp-echo', 7001);
});

test.after.always((t) => t.context.outside[Symbol.asyncDispose]());

test('a guest reaches the outside by name, over TCP and UDP, as one of the host’s', async (t) => {
  const { outside } = t.context;
  await using host = await RoutedHost.open(outside);
  const slot = await host.pool.lease();
  await using peer = await TestPeer.on(slot);
  const talk = (...args: string[]): Promise<string> => peer.run('talk.py', ...args);

  t.is(await talk('tcp', outside.address(0), '7000', 'hello'), `${outside.hostAddress} hello`);
  t.is(await talk('udp', outside.address(0), '7001', 'hello'), `${outside.hostAddress} hello`);
  // In several fragments.
  const long = 'x'.repeat(8_000);
  t.is(await talk('udp', outside.address(0), '7001', long), `${outside.hostAddress} ${long}`);
  const resolver = slot.gatewayAddress;
  t.is(await talk('dns', resolver, 'udp', 'outside.test'), outside.address(0));
  t.is(await talk('dns', resolver, 'tcp', 'outside.test'), outside.address(0));
  t.is(await talk('dns', resolver, 'udp', 'nothing.test'), 'NXDOMAIN');
});

test('a guest reaches nothing of its host, its cluster, its neighbours or closed networks', async (t) => {
  const { outside } = t.context;
  const server = createServer().listen(0, '0.0.0.0'); // Listens on all addresses of the host.
  t.teardown(() => server.close());
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const cluster = outside.address(5);
  await outside.addAddress('169.254.169.254');
  await outside.addAddress('168.63.129.16');
  await outside.addAddress('10.203.255.7');
  await using host = await RoutedHost.open(outside, { cluster: () => [cluster] });
  const [slot, neighbour] = [await host.pool.lease(), await host.pool.lease()];
  await using peer = await TestPeer.on(slot);
  await using other = await TestPeer.on(neighbour);
  await other.serve('tcp-echo', 7000);
  const uplink = /inet (\S+?)\//u.exec(
    await outside.host('ip', 'address', 'show', host.router.hostLink),
  )?.[1];

  const ofHost = [outside.hostAddress, uplink, '127.0.0.1'].map((each) => `${each}:${port}`);
  const ofCluster = `${cluster}:7000`;
  const ofNeighbour = [neighbour.address, neighbour.proxiedAddress, slot.address];
  const closed = ['169.254.169.254', '168.63.129.16', '10.203.255.7', slot.routerAddress];
  const all = [...ofHost, ofCluster, ...[...ofNeighbour, ...closed].map((each) => `${each}:7000`)];
  const reached = await probe(peer, `${outside.address(0)}:7000`, ...all);
  const [open, ...rest] = reached;
  t.is(open, 'connected');
  t.deepEqual([...new Set(rest)].sort(), ['refused', 'silent']); // Its own loopback refuses.
  t.is(rest.filter((each) => each === 'refused').length, 1);
  t.deepEqual(await probe(outside, ofCluster, '10.203.255.7:7000'), ['connected', 'connected']);
});

test('private networks are open where a setting says so, what is always closed is not', async (t) => {
  const { outside } = t.context;
  await outside.addAddress('10.203.254.7');
  await outside.addAddress('10.203.254.8');
  const settings = { reachable: ['10.203.254.0/24', '169.254.0.0/16'] };
  const clusterOf = ['10.203.254.8'];
  await using host = await RoutedHost.open(outside, { settings, cluster: () => clusterOf });
  const slot = await host.pool.lease();
  await using peer = await TestPeer.on(slot);
  const targets = ['10.203.254.7', '10.203.254.8', '169.254.169.254'].map((each) => `${each}:7000`);
  t.deepEqual(await probe(peer, ...targets), ['connected', 'silent', 'silent']);
  clusterOf.push('10.203.254.7'); // The same happens when a control node is started there.
  await host.refresh();
  t.deepEqual(await probe(peer, ...targets), ['silent', 'silent', 'silent']);
});

test('nothing leaves a slot under an address, MAC or protocol that is not its guest’s', async (t) => {
  const { outside } = t.context;
  await using host = await RoutedHost.open(outside);
  const slot = await host.pool.lease();
  await using peer = await TestPeer.on(slot);
  await peer.learn(slot.gatewayAddress, slot.gatewayMac); // The peer needs no answer from anybody.
  const target = [outside.address(0), '7001', 'hello'];
  const heard = `${outside.hostAddress} hello`;
  t.is(await peer.run('spoof.py', slot.guestAddress, slot.guestMac, ...target), heard);
  t.is(await peer.run('spoof.py', '10.255.255.3', slot.guestMac, ...target), 'silent');
  t.is(await peer.run('spoof.py', '198.51.100.9', slot.guestMac, ...target), 'silent');
  t.is(await peer.run('spoof.py', slot.guestAddress, '02:00:00:00:00:09', ...target), 'silent');
  for (const namespace of [slot.namespace, host.router.namespace]) {
    t.is(await withinSlot({ namespace }, 'ip', '-6', 'address'), '', 'there is no IPv6');
  }
});

test('a guest has so many connections at most, and its neighbours theirs', async (t) => {
  const { outside } = t.context;
  await using host = await RoutedHost.open(outside);
  const [slot, neighbour] = [await host.pool.lease(), await host.pool.lease()];
  await using peer = await TestPeer.on(slot);
  await using other = await TestPeer.on(neighbour);
  const most = NETWORK_LIMITS.connectionsPerSandboxMax;
  const target = [outside.address(0), '7001'];
  t.is(Number(await peer.run('many-connections.py', ...target, String(most + 10))), most);
  t.is(Number(await other.run('many-connections.py', ...target, '10')), 10);
});

test('connections with the mark of the egress proxy arrive at it, or nowhere', async (t) => {
  const { outside } = t.context;
  await using host = await RoutedHost.open(outside);
  const slot = await host.pool.lease();
  await using peer = await TestPeer.on(slot);
  const mark = 'insert rule inet berth egress tcp dport 7000 meta mark set 1 accept';
  await withinSlot(slot, nft, mark);
  const talk = (): Promise<string> =>
    peer.run('talk.py', 'tcp', outside.address(3), '7000', 'hello');
  t.is(await talk(), 'silent');
  await using _proxy = await host.listenTransparently(EGRESS_PORT);
  t.is(await talk(), `${outside.address(3)}:7000 ${slot.proxiedAddress}`);
});

/** Index and address of each link. The names that ip gives to peers depend on other namespaces. */
async function linksIn(slot: { namespace: string }): Promise<unknown[]> {
  const links = JSON.parse(await withinSlot(slot, 'ip', '-json', 'link')) as Link[];
  return links.map(({ ifindex, ifname, address }) => [ifindex, ifname, address]);
}

interface Link {
  readonly ifindex: number;
  readonly ifname: string;
  readonly address: string;
}

test('a router and slots that were taken over keep connections and policies', async (t) => {
  const { outside } = t.context;
  await using host = await RoutedHost.open(outside);
  const slot = await host.pool.lease();
  await using peer = await TestPeer.on(slot);
  const fd = await native.connectInNamespace(
    `/run/netns/${peer.namespace}`,
    outside.address(0),
    7000,
  );
  const connection = new Socket({ fd, readable: true, writable: true });
  const echo = async (text: string): Promise<string> => {
    connection.write(text);
    const [answer] = (await once(connection, 'data')) as [Buffer];
    return answer.toString();
  };
  t.is(await echo('one'), `${outside.hostAddress} one`);
  await withinSlot(slot, nft, 'insert rule inet berth egress udp dport 7001 drop');
  const links = await linksIn(host.router);

  await host.stopAgent();
  t.is(await echo('two'), 'two', 'nobody is there');
  await host.startAgent([slot.index]);
  await host.pool.take(slot.index);
  t.is(await echo('three'), 'three');
  t.deepEqual(await linksIn(host.router), links, 'nothing was made again');
  const udp = ['talk.py', 'udp', outside.address(0), '7001', 'hello'] as const;
  t.is(await peer.run(...udp), 'silent', 'the policy holds');
  t.deepEqual(await probe(peer, `${outside.address(0)}:7000`), ['connected']);
  connection.destroy();
});

test('what is lost of a router is made again, and slots find it', async (t) => {
  const { outside } = t.context;
  await using host = await RoutedHost.open(outside);
  const slot = await host.pool.lease();
  await using peer = await TestPeer.on(slot);
  const { hostLink, hostTable, namespace } = host.router;
  const target = `${outside.address(0)}:7000`;
  const name = ['talk.py', 'dns', slot.gatewayAddress, 'udp', 'outside.test'] as const;

  await outside.host('ip', 'link', 'delete', hostLink);
  await host.refresh();
  t.deepEqual(await probe(peer, target), ['connected']);
  await outside.host(nft, 'delete', 'table', 'inet', hostTable);
  await host.killResolver();
  await host.refresh();
  t.deepEqual(await probe(peer, target), ['connected'], 'its address is translated');
  t.is(await peer.run(...name), outside.address(0));
  // Everything, while no agent is there.
  await host.stopAgent();
  await outside.host('ip', 'netns', 'delete', namespace);
  await outside.host(nft, 'flush', 'table', 'inet', hostTable);
  await host.startAgent([slot.index]);
  await host.pool.take(slot.index);
  t.deepEqual(await probe(peer, target), ['connected']);
  t.is(await peer.run(...name), outside.address(0));
});

test('two hosts of one machine have routers of their own, which do not meet', async (t) => {
  const { outside } = t.context;
  await using one = await RoutedHost.open(outside);
  const slot = await one.pool.lease();
  await using peer = await TestPeer.on(slot);
  const target = `${outside.address(0)}:7000`;
  {
    await using other = await RoutedHost.open(outside);
    const away = await other.pool.lease();
    await using guest = await TestPeer.on(away);
    await guest.serve('tcp-echo', 7000);
    t.deepEqual(await probe(peer, target), ['connected']);
    t.deepEqual(await probe(guest, target), ['connected']);
    t.deepEqual(await probe(peer, `${away.address}:7000`, `${away.guestAddress}:7000`), [
      'silent',
      'refused', // Its own.
    ]);
  }
  t.deepEqual(await probe(peer, target), ['connected']);
});
