/*
 * The most that one guest may take of what all guests of a host share: places of the resolver, and
 * entries of the tables of connections.
 */
import anyTest, { type TestFn } from 'ava';
import { NAMES_PORT } from '../../../../agent/network/slots/router-plan.ts';
import type { SlotPlan } from '../../../../agent/network/slots/slot.ts';
import { NETWORK_LIMITS } from '../../../../agent/network/limits.ts';
import { parseNetworkPolicy } from '../../../../shared/network/parse-policy.ts';
import { Outside } from '../../../helpers/outside.ts';
import { RoutedHost } from '../../../helpers/routed-host.ts';
import { TestPeer, withinSlot } from '../../../helpers/slots.ts';
import { temporaryDirectory } from '../../../helpers/temporary.ts';
import { waitFor } from '../../../helpers/wait.ts';

const test = anyTest.serial as TestFn<{ outside: Outside }>;
const nft = '/usr/sbin/nft';
/** Far more than a sandbox may have under way. */
const MANY = 1000;

test.before(async (t) => {
  t.context = { outside: await Outside.open() };
});

test.after.always((t) => t.context.outside[Symbol.asyncDispose]());

/** Counts the questions that get from a slot to the host's resolver. */
class Counter {
  readonly #router: { readonly namespace: string };
  readonly #table: string;

  private constructor(router: { readonly namespace: string }, table: string) {
    this.#router = router;
    this.#table = table;
  }

  static async of(host: RoutedHost, slot: SlotPlan, port = 53): Promise<Counter> {
    const table = `counted${slot.index}`;
    const rules = [
      `add table ip ${table}`,
      `add chain ip ${table} input { type filter hook input priority filter; }`,
      `add rule ip ${table} input ip saddr ${slot.address} udp dport ${port} counter`,
    ];
    await withinSlot(host.router, nft, rules.join('; '));
    return new Counter(host.router, table);
  }

  async read(): Promise<number> {
    const shown = await withinSlot(this.#router, nft, 'list', 'table', 'ip', this.#table);
    return Number(/counter packets (\d+)/u.exec(shown)?.[1]);
  }
}

test('a guest has so many unanswered questions at most, and its neighbours theirs', async (t) => {
  const { outside } = t.context;
  // Nobody answers there.
  const settings = { resolvers: [outside.address(5)] };
  await using host = await RoutedHost.open(outside, { settings });
  const [slot, neighbour] = [await host.pool.lease(), await host.pool.lease()];
  await using peer = await TestPeer.on(slot);
  await using other = await TestPeer.on(neighbour);
  const [ofSlot, ofNeighbour] = [await Counter.of(host, slot), await Counter.of(host, neighbour)];
  await peer.run('many-questions.py', slot.gatewayAddress, 'ids', String(MANY));
  const most = NETWORK_LIMITS.dnsQuestionsPerSandboxMax;
  const seen = await ofSlot.read();
  t.true(seen >= most && seen < MANY, String(seen));
  t.is(await ofNeighbour.read(), 0);
  // An id says nothing of the question: with one for all, more would get through.
  await other.run('many-questions.py', neighbour.gatewayAddress, 'same', String(MANY));
  const repeated = await ofNeighbour.read();
  t.true(repeated > 0 && repeated < most, String(repeated));
});

test('questions that are answered make room for others, the slot’s own resolver’s too', async (t) => {
  const { outside } = t.context;
  await using host = await RoutedHost.open(outside);
  const slot = await host.pool.lease();
  await using peer = await TestPeer.on(slot);
  const count = NETWORK_LIMITS.dnsQuestionsPerSandboxMax + 100;
  const ask = async (): Promise<number> =>
    Number(await peer.run('many-questions.py', slot.gatewayAddress, 'turns', String(count)));
  t.is(await ask(), count);
  const egress = { default: 'allow', deny: ['bad.test'] };
  await host.policies.apply(slot, 'sandbox', parseNetworkPolicy({ egress }));
  t.is(await ask(), count);
  await host.pool.release(slot.index); // Its resolver ends with it.
});

test('a guest has so many names refused at once at most', async (t) => {
  const { outside } = t.context;
  await using directory = await temporaryDirectory();
  await using host = await RoutedHost.open(outside, { proxyDir: directory.path });
  const slot = await host.pool.lease();
  await using peer = await TestPeer.on(slot);
  const egress = { default: 'deny' };
  await host.policies.apply(slot, 'sandbox', parseNetworkPolicy({ egress }));
  const counter = await Counter.of(host, slot, NAMES_PORT);
  await peer.run('many-questions.py', slot.gatewayAddress, 'ids', String(MANY));
  const seen = await counter.read();
  t.true(seen >= 500 && seen < MANY, String(seen));
});

test('a guest does not learn from its resolver what its neighbours ask for', async (t) => {
  const { outside } = t.context;
  await using host = await RoutedHost.open(outside);
  const [slot, neighbour] = [await host.pool.lease(), await host.pool.lease()];
  await using peer = await TestPeer.on(slot);
  await using other = await TestPeer.on(neighbour);
  const ask = (from: TestPeer, ...question: string[]): Promise<string> =>
    from.run('talk.py', 'dns', slot.gatewayAddress, 'udp', ...question);
  const name = `n${Date.now()}.outside.test`;
  await outside.setName(name, outside.address(3));
  const before = outside.asked.length;
  for (const from of [peer, other, peer]) t.is(await ask(from, name), outside.address(3));
  await waitFor('the log', async () => outside.asked.length - before >= 3);
  t.deepEqual(
    outside.asked.slice(before),
    Array.from({ length: 3 }, () => `query[A] ${name}`),
  );
});

test('no name server tells about itself', async (t) => {
  const { outside } = t.context;
  await using host = await RoutedHost.open(outside);
  const slot = await host.pool.lease();
  await using peer = await TestPeer.on(slot);
  const [TXT, CHAOS] = ['16', '3'];
  const before = outside.asked.length;
  for (const egress of [{ default: 'allow' }, { default: 'allow', deny: ['bad.test'] }]) {
    await host.policies.apply(slot, 'sandbox', parseNetworkPolicy({ egress }));
    for (const domain of [
      'version.bind',
      'servers.bind',
      'hits.bind',
      'id.server',
      'version.pdns',
    ]) {
      const question = [slot.gatewayAddress, 'udp', domain, TXT, CHAOS];
      t.regex(
        await peer.run('talk.py', 'dns', ...question),
        /^(NOTIMP|REFUSED|NXDOMAIN)$/u,
        domain,
      );
    }
  }
  t.deepEqual(outside.asked.slice(before), []);
  await host.pool.release(slot.index);
});

test('a guest leaves connections to the resolver to others', async (t) => {
  const { outside } = t.context;
  await using host = await RoutedHost.open(outside);
  const [slot, neighbour] = [await host.pool.lease(), await host.pool.lease()];
  await using peer = await TestPeer.on(slot);
  await using other = await TestPeer.on(neighbour);
  const connect = async (from: TestPeer): Promise<number> =>
    Number(await from.run('many-questions.py', slot.gatewayAddress, 'tcp', '6'));
  t.deepEqual([await connect(peer), await connect(other)], [4, 4]);
});

test('a guest opens so many connections at once at most, and its neighbours theirs', async (t) => {
  const { outside } = t.context;
  await using host = await RoutedHost.open(outside);
  const [slot, neighbour] = [await host.pool.lease(), await host.pool.lease()];
  await using peer = await TestPeer.on(slot);
  await using other = await TestPeer.on(neighbour);
  const attempts = NETWORK_LIMITS.newConnectionsBurstMax + 2000;
  const attempt = async (from: TestPeer, count: number): Promise<number> =>
    Number(await from.run('many-attempts.py', outside.address(0), '7009', String(count)));
  const answered = await attempt(peer, attempts);
  // They have ended, so that none of them counts as a connection.
  t.true(
    answered > NETWORK_LIMITS.connectionsPerSandboxMax && answered < attempts,
    String(answered),
  );
  t.is(await attempt(other, 100), 100);
});

test('the router soon forgets connections that have ended, also when it is taken over', async (t) => {
  const { outside } = t.context;
  await using host = await RoutedHost.open(outside);
  const slot = await host.pool.lease();
  const path = '/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_time_wait';
  const read = (): Promise<string> => withinSlot(host.router, 'cat', path);
  t.is(await read(), '10\n');
  await host.stopAgent();
  await withinSlot(host.router, 'sh', '-c', `echo 120 > ${path}`);
  await host.startAgent([slot.index]);
  t.is(await read(), '10\n');
});
