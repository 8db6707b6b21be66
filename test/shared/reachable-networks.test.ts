import test from 'ava';
import { isReachableNetwork, portOf, ReachableNetworks } from '../../shared/reachable-networks.ts';

const PUBLIC = [
  ...['1.1.1.1', '93.184.216.34', '172.32.0.1', '192.169.0.1', '223.255.255.255'],
  ...['2001:200::1', '2001:4860:4860::8888', '2003::1', '2606:4700:4700::1111', '2a00:1450::1'],
  ...['2620:4f:7fff::1', '2620:4f:8001::1', '3ffe:ffff::1', '3fff:1000::1'],
  '::ffff:1.1.1.1',
];

/** IANA's special-purpose registries of both families, and what was never given out. */
const SPECIAL = [
  ...['0.0.0.0', '10.0.0.1', '100.64.0.1', '127.0.0.1', '127.1', '0x7f000001', '169.254.169.254'],
  ...['172.16.0.1', '192.0.0.1', '192.0.0.9', '192.0.2.1', '192.31.196.1', '192.52.193.1'],
  ...['192.88.99.1', '192.168.0.1', '192.175.48.1', '198.18.0.1', '198.51.100.1', '203.0.113.1'],
  ...['224.0.0.1', '240.0.0.1', '255.255.255.255'],
  ...['::', '::1', '::2', '::7f00:1', '::127.0.0.1', '::a9fe:a9fe', '::ffff:127.0.0.1'],
  ...['::ffff:0:127.0.0.1', '64:ff9b::7f00:1', '64:ff9b::808:808', '64:ff9b:1::1'],
  ...['100::1', '100:0:0:1::1', '200::1', '1fff:ffff::1', '4000::1', '5f00::1', '8000::1'],
  ...['2001::1', '2001:1::1', '2001:1::2', '2001:1::3', '2001:2::1', '2001:3::1', '2001:4:112::1'],
  ...['2001:10::1', '2001:20::1', '2001:30::1', '2001:1ff:ffff::1', '2001:db8::1'],
  ...['2002:7f00:1::1', '2620:4f:8000::1', '3fff::1', '3fff:fff:ffff::1'],
  ...['fc00::1', 'fd00::1', 'fe80::1', 'fe80::1%lo', 'fec0::1', 'ff02::1'],
  ...['', 'localhost', '[::1]', '1.1.1.1/32'],
];

test('the public addresses are those of the internet without special ranges', (t) => {
  const none = new ReachableNetworks([]);
  t.deepEqual(
    PUBLIC.filter((address) => !none.allows(address, 443)),
    [],
  );
  t.deepEqual(
    SPECIAL.filter((address) => none.allows(address, 443)),
    [],
  );
});

test('the operator opens special ranges by name', (t) => {
  const networks = new ReachableNetworks(['127.0.0.0/8', 'fd00::/8', '100::/64']);
  for (const address of ['127.0.0.1', '::ffff:127.0.0.1', 'fd00::1', '100::1']) {
    t.true(networks.allows(address, 443), address);
  }
  for (const address of ['10.0.0.1', 'fc00::1', '100:0:0:1::1', '::7f00:1']) {
    t.false(networks.allows(address, 443), address);
  }
});

test('a network may be named with a port, which is then the only one', (t) => {
  const networks = new ReachableNetworks(['127.0.0.1/32:9000', 'fd00::/8:9001', '10.0.0.0/8']);
  const isOpen = (address: string, port: number): boolean =>
    networks.allows(address, port) && networks.isNamed(address, port);
  for (const [address, port] of [
    ...([
      ['127.0.0.1', 9000],
      ['::ffff:127.0.0.1', 9000],
    ] as const),
    ...([
      ['fd00::1', 9001],
      ['10.0.0.1', 1],
      ['10.0.0.1', 9000],
    ] as const),
  ] as const) {
    t.true(isOpen(address, port), `${address} ${port}`);
  }
  for (const [address, port] of [
    ...([
      ['127.0.0.1', 9001],
      ['127.0.0.1', 6379],
      ['127.0.0.2', 9000],
    ] as const),
    ...([
      ['fd00::1', 9000],
      ['::1', 9000],
    ] as const),
  ] as const) {
    t.false(isOpen(address, port), `${address} ${port}`);
  }
});

test('networks are CIDR blocks, with a port or without', (t) => {
  for (const text of ['10.0.0.0/8', '127.0.0.1/32:1', '::1/128', '::1/128:65535', 'fd00::/8:80']) {
    t.true(isReachableNetwork(text), text);
  }
  for (const text of [
    ...[
      '10.0.0.1',
      '10.0.0.1:80',
      '10.0.0.0/33',
      '10.0.0.0/8:',
      '10.0.0.0/8:0',
      '10.0.0.0/8:65536',
    ],
    ...['10.0.0.0/8:http', '[::1]/128:80', '::1:80', 'localhost/8', '', '10.0.0.0/8:80:80'],
  ]) {
    t.false(isReachableNetwork(text), text);
  }
});

test('a URL leads to its port, or to that of its scheme', (t) => {
  const ports = ['https://a', 'http://a', 'http://a:443', 'https://[::1]:9000'];
  t.deepEqual(
    ports.map((text) => portOf(new URL(text))),
    [443, 80, 443, 9000],
  );
});
