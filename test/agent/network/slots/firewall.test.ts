/*
 * The guest's reach through its slot, seen from a namespace in the guest's place; each finding is
 * repeated without the rules, to show that the rules make the difference.
 */
import { once } from 'node:events';
import { createServer, type AddressInfo } from 'node:net';
import test from 'ava';
import { denyAll } from '../../../../agent/network/slots/slot-rules.ts';
import { run } from '../../../../agent/system/spawn.ts';
import { probe, SlotHost, TestPeer, withinSlot } from '../../../helpers/slots.ts';

const nft = '/usr/sbin/nft';

test('nothing in a slot answers its guest', async (t) => {
  await using host = new SlotHost();
  const slot = await (await host.openPool({ readyMax: 0 })).lease();
  await using peer = await TestPeer.on(slot);
  const gateway = `${slot.gatewayAddress}:80`;

  t.deepEqual(await probe(peer, gateway), ['silent']);
  const unknown = await peer.neighbours();
  t.true(unknown.includes(slot.gatewayAddress), unknown);
  t.false(unknown.includes('lladdr'), unknown);
  await peer.learn(slot.gatewayAddress, slot.gatewayMac);
  t.deepEqual(await probe(peer, gateway), ['silent']);

  await withinSlot(slot, nft, 'flush ruleset');
  t.deepEqual(await probe(peer, gateway), ['refused']);
});

test('nothing goes through a slot, not even where something forwards', async (t) => {
  await using host = new SlotHost();
  const slot = await (await host.openPool({ readyMax: 0 })).lease();
  await using peer = await TestPeer.on(slot);
  await peer.learn(slot.gatewayAddress, slot.gatewayMac);
  // A second interface with a host behind it, and what a slot does not do: forward.
  const beyond = `${slot.namespace}-beyond`;
  await run('ip', ['netns', 'add', beyond]);
  try {
    const links = [
      `link add link0 type veth peer name link0 netns ${beyond}`,
      'address add 10.254.0.1/30 dev link0',
      'link set link0 up',
    ];
    await run('ip', ['-n', slot.namespace, '-batch', '-'], { input: `${links.join('\n')}\n` });
    const inside = ['address add 10.254.0.2/30 dev link0', 'link set link0 up'];
    const back = `route add ${slot.guestAddress} via 10.254.0.1`;
    await run('ip', ['-n', beyond, '-batch', '-'], { input: [...inside, back, ''].join('\n') });
    await withinSlot(slot, 'sh', '-c', 'echo 1 > /proc/sys/net/ipv4/ip_forward');
    t.deepEqual(await probe(peer, '10.254.0.2:80'), ['silent']);
    await withinSlot(slot, nft, 'flush ruleset');
    t.deepEqual(await probe(peer, '10.254.0.2:80'), ['refused']);
  } finally {
    await run('ip', ['netns', 'delete', beyond]);
  }
});

test('what breaks out of a guest into its slot reaches nothing either', async (t) => {
  const server = createServer().listen(0, '127.0.0.1'); // Listens on loopback, like Redis.
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  await using host = new SlotHost();
  const slot = await (await host.openPool({ readyMax: 0 })).lease();
  await using _peer = await TestPeer.on(slot);
  const targets = [`127.0.0.1:${port}`, `${slot.gatewayAddress}:80`, `${slot.guestAddress}:80`];

  t.deepEqual(await probe(slot, ...targets), ['silent', 'silent', 'silent']);
  await withinSlot(slot, nft, 'flush ruleset');
  // Its own addresses and its own guest; the host's service is still not there.
  t.deepEqual(await probe(slot, ...targets), ['refused', 'refused', 'refused']);
  server.close();
});

test('the rules can be loaded over themselves, and over what is weaker', async (t) => {
  await using host = new SlotHost();
  const slot = await (await host.openPool({ readyMax: 0 })).lease();
  const list = (): Promise<string> => withinSlot(slot, nft, 'list ruleset');
  const load = (rules: string): Promise<string> =>
    run('nsenter', [`--net=/run/netns/${slot.namespace}`, nft, '-f', '-'], { input: rules });
  const fresh = await list();
  t.is(fresh.match(/policy drop/gu)?.length, 5);
  await load(denyAll());
  t.is(await list(), fresh);
  await load('add rule inet berth input accept\nadd chain inet berth output { policy accept; }\n');
  t.not(await list(), fresh);
  await load(denyAll());
  t.is(await list(), fresh);
});
