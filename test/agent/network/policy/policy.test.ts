/*
 * The effect of policies, seen from a namespace in the guest's place, as root there. Rules by name
 * for ports 80 and 443 are the egress proxy's; here is what the kernel and the resolver do.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { createInterface } from 'node:readline';
import anyTest, { type ExecutionContext, type TestFn } from 'ava';
import type { SlotPlan } from '../../../../agent/network/slots/slot.ts';
import { run } from '../../../../agent/system/spawn.ts';
import { parseNetworkPolicy } from '../../../../shared/network/parse-policy.ts';
import { identify } from '../../../../shared/process-id.ts';
import { Outside } from '../../../helpers/outside.ts';
import { RoutedHost } from '../../../helpers/routed-host.ts';
import { TestPeer } from '../../../helpers/slots.ts';
import { temporaryDirectory } from '../../../helpers/temporary.ts';
import { waitFor } from '../../../helpers/wait.ts';

interface Context {
  outside: Outside;
  host: RoutedHost;
  directory: AsyncDisposable;
}

const test = anyTest.serial as TestFn<Context>;

test.before(async (t) => {
  const outside = await Outside.open({
    ...{ 'good.test': 1, 'bad.test': 2, 'below.good.test': 3 },
    ...{ 'wild.test': 4, 'a.wild.test': 5, 'b.wild.test': 6, 'same.test': 1 },
  });
  await outside.setAlias('alias.wild.test', 'bad.test');
  t.context.outside = outside;
  for (const port of [7000, 853, 443]) await outside.serve('tcp-echo', port);
  for (const port of [7001, 443]) await outside.serve('udp-echo', port);
  const directory = await temporaryDirectory();
  t.context.directory = directory;
  t.context.host = await RoutedHost.open(outside, { proxyDir: directory.path });
});

test.after.always(async (t) => {
  const { host, outside, directory } = t.context as Partial<Context>;
  await host?.[Symbol.asyncDispose]();
  await outside?.[Symbol.asyncDispose]();
  await directory?.[Symbol.asyncDispose]();
});

const talk = ['python3', new URL('../../../fixtures/talk.py', import.meta.url).pathname] as const;

/** A guest in a slot with a policy. */
class Guest implements AsyncDisposable {
  readonly sandboxId = randomUUID();
  readonly slot: SlotPlan;
  readonly peer: TestPeer;
  readonly #context: Context;

  private constructor(context: Context, slot: SlotPlan, peer: TestPeer) {
    this.#context = context;
    this.slot = slot;
    this.peer = peer;
  }

  /** In a new slot, for which no policy was applied. */
  static async begin({ context }: ExecutionContext<Context>): Promise<Guest> {
    const slot = await context.host.pool.lease();
    return new Guest(context, slot, await TestPeer.on(slot));
  }

  static async open(t: ExecutionContext<Context>, egress: object): Promise<Guest> {
    const guest = await Guest.begin(t);
    await guest.apply(egress);
    return guest;
  }

  apply(egress: object): Promise<void> {
    const policy = parseNetworkPolicy({ egress });
    return this.#context.host.policies.apply(this.slot, this.sandboxId, policy);
  }

  /** Whether the address with this index answers. */
  async reaches(index: number, port = 7000, kind: 'tcp' | 'udp' = 'tcp'): Promise<boolean> {
    const address = this.#context.outside.address(index);
    const answer = await this.peer.run('talk.py', kind, address, String(port), 'hello');
    return answer.endsWith(' hello');
  }

  resolve(name: string, server = this.slot.gatewayAddress): Promise<string> {
    return this.peer.run('talk.py', 'dns', server, 'udp', name);
  }

  /** Asks its resolver another question. @param type and class, as numbers */
  ask(name: string, kind: 'tcp' | 'udp', ...type: number[]): Promise<string> {
    const { gatewayAddress } = this.slot;
    return this.peer.run('talk.py', 'dns', gatewayAddress, kind, name, ...type.map(String));
  }

  /** Ids of the processes that answer names in the slot. */
  async resolvers(): Promise<number[]> {
    const listed = await run('ip', ['netns', 'pids', this.slot.namespace]);
    const pids = listed.trim().split('\n').map(Number);
    const comms = pids.map((pid) => readFile(`/proc/${pid}/comm`, 'utf8').catch(() => ''));
    const names = await Promise.all(comms);
    return pids.filter((pid, at) => names[at] === 'dnsmasq\n' && identify(pid) !== undefined);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.peer[Symbol.asyncDispose]();
    await this.#context.host.pool.release(this.slot.index);
  }
}

/** How many packets an interface has sent. */
async function sentPackets({ namespace }: { namespace: string }, name: string): Promise<number> {
  const shown = await run('ip', ['-n', namespace, '-s', '-json', 'link', 'show', 'dev', name]);
  const [link] = JSON.parse(shown) as { stats64: { tx: { packets: number } } }[];
  return link?.stats64.tx.packets ?? -1;
}

/** A connection that stays open. */
class Held implements Disposable {
  readonly #child: ChildProcess;
  readonly #lines: AsyncIterator<string>;

  constructor(from: TestPeer, address: string) {
    const program = new URL('../../../fixtures/hold-connection.py', import.meta.url).pathname;
    const within = [`--net=/run/netns/${from.namespace}`, 'python3', program, address, '7000'];
    const child = spawn('nsenter', within, { stdio: ['pipe', 'pipe', 'inherit'] });
    this.#child = child;
    this.#lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  }

  async say(text: string): Promise<string> {
    this.#child.stdin?.write(`${text}\n`);
    const next: IteratorResult<string> = await this.#lines.next();
    return next.done === true ? 'the connection is gone' : next.value;
  }

  [Symbol.dispose](): void {
    this.#child.kill('SIGKILL');
  }
}

test('slots begin with the policy of sandboxes that name none', async (t) => {
  await using guest = await Guest.begin(t);
  t.true(await guest.reaches(1));
  await guest.apply({ default: 'allow' });
  t.true(await guest.reaches(1));
  const decided = await t.context.host.policies.decisions(guest.sandboxId);
  t.deepEqual(
    decided.map(({ rule, allowed }) => ({ rule, allowed })),
    [{ rule: 'default', allowed: true }],
  );
  await guest.apply({ default: 'deny' });
  t.false(await guest.reaches(1));
  await guest.apply({ default: 'allow' });
  t.true(await guest.reaches(1));
});

test('where everything is denied, addresses and blocks that are allowed answer, unless denied', async (t) => {
  const { outside } = t.context;
  const [one, two] = [outside.address(1), outside.address(2)];
  await using guest = await Guest.open(t, { default: 'deny', allow: [one] });
  t.true(await guest.reaches(1));
  t.false(await guest.reaches(2));
  t.is(await guest.resolve('good.test'), 'NXDOMAIN', 'a rule of addresses allows no name');
  await guest.apply({ default: 'deny', allow: [`${one}/28`], deny: [two] });
  t.true(await guest.reaches(1));
  t.false(await guest.reaches(2));
  await guest.apply({ default: 'allow', deny: [two], allow: [two] });
  t.true(await guest.reaches(3));
  t.false(await guest.reaches(2));
});

test('what is denied is refused at once, over TCP and UDP', async (t) => {
  const address = t.context.outside.address(1);
  await using guest = await Guest.open(t, { default: 'deny' });
  t.is(await guest.peer.run('talk.py', 'tcp', address, '7000', 'hello'), 'refused');
  t.is(await guest.peer.run('talk.py', 'udp', address, '7001', 'hello'), 'refused');
});

test('the addresses of an allowed name answer once the guest has asked for it, and no others', async (t) => {
  await using guest = await Guest.open(t, { default: 'deny', allow: ['good.test'] });
  t.false(await guest.reaches(1));
  t.is(await guest.resolve('good.test'), t.context.outside.address(1));
  t.true(await guest.reaches(1));
  t.is(await guest.resolve('bad.test'), 'NXDOMAIN');
  t.false(await guest.reaches(2));
  t.is(await guest.resolve('below.good.test'), 'NXDOMAIN');
  t.false(await guest.reaches(3));
});

test('a wildcard allows the names below it', async (t) => {
  const allow = ['*.wild.test', 'good.test'];
  await using guest = await Guest.open(t, { default: 'deny', allow, deny: ['b.wild.test'] });
  for (const name of ['a.wild.test', 'b.wild.test']) await guest.resolve(name);
  t.true(await guest.reaches(5));
  t.false(await guest.reaches(6), 'deny counts before allow');
});

/** The names that the outside's resolver was asked for by the work. */
async function askedBy({ outside }: Context, work: () => Promise<void>): Promise<string[]> {
  const before = outside.asked.length;
  await work();
  const last = `last-${randomUUID()}.test`;
  await outside.run(...talk, 'dns', outside.resolver, 'udp', last);
  await waitFor(
    'the log of the resolver',
    async () => outside.asked.at(-1)?.endsWith(last) === true,
  );
  const names = outside.asked.slice(before, -1).map((question) => question.toLowerCase());
  return [...new Set(names)].toSorted();
}

const [TXT, PTR, IN, CHAOS] = [16, 12, 1, 3];
const POLICIES = {
  'rules by name': {
    ...{ default: 'deny', allow: ['good.test', '*.wild.test', '192.0.2.0/24'] },
    deny: ['b.wild.test', '*.a.wild.test'],
  },
  'rules of addresses': { default: 'deny', allow: ['0.0.0.0/0'] },
  'no rule': { default: 'deny' },
} as const;

for (const [rules, egress] of Object.entries(POLICIES)) {
  test(`with ${rules}, no name is asked for that none allows, and decisions say so`, async (t) => {
    const { host } = t.context;
    await using guest = await Guest.open(t, egress);
    const refused = ['leak.outside.test', 'outside.test', 'wild.test', 'xgood.test', 'b.wild.test'];
    const denied = [...refused, 'below.good.test', 'c.a.wild.test', 'localhost', 'Up.TEST'];
    const asked = await askedBy(t.context, async () => {
      for (const name of denied) t.is(await guest.resolve(name), 'NXDOMAIN', name);
      for (const kind of ['tcp', 'udp'] as const) {
        t.is(await guest.ask('text.outside.test', kind, TXT, IN), 'NXDOMAIN');
        t.is(await guest.ask('1.2.0.192.in-addr.arpa', kind, PTR, IN), 'NXDOMAIN');
        t.not(await guest.ask('servers.bind', kind, TXT, CHAOS), 'answered');
        t.not(await guest.ask('version.pdns', kind, TXT, CHAOS), 'answered');
      }
    });
    t.deepEqual(asked, []);
    const decisions = await host.policies.decisions(guest.sandboxId);
    const told = new Map(decisions.map(({ name, rule, count }) => [name, `${rule} ${count}`]));
    const isNamed = 'deny' in egress;
    for (const name of refused) {
      t.is(told.get(name), isNamed && name === 'b.wild.test' ? 'b.wild.test 1' : 'default 1', name);
    }
    t.is(told.get('c.a.wild.test'), isNamed ? '*.a.wild.test 1' : 'default 1');
    t.is(told.get('up.test'), 'default 1');
    t.is(told.get('text.outside.test'), 'default 2', 'over TCP and UDP');
    t.true(
      decisions.every(
        ({ allowed, protocol, port }) => !allowed && protocol === 'udp' && port === 53,
      ),
    );
  });
}

test('names that a rule allows are asked for, also by a wildcard, and with their aliases', async (t) => {
  const { outside } = t.context;
  await using guest = await Guest.open(t, POLICIES['rules by name']);
  const asked = await askedBy(t.context, async () => {
    t.is(await guest.resolve('good.test'), outside.address(1));
    t.is(await guest.resolve('GOOD.test'), outside.address(1));
    t.is(await guest.resolve('a.wild.test'), outside.address(5));
    t.is(await guest.resolve('alias.wild.test'), outside.address(2), 'an alias of bad.test');
    t.is(await guest.ask('good.test', 'tcp', TXT, IN), 'NODATA');
  });
  t.deepEqual(asked, [
    ...['query[a] a.wild.test', 'query[a] alias.wild.test'],
    ...['query[a] good.test', 'query[txt] good.test'],
  ]);
});

test('a running guest’s names follow its policy, and dns: open has all of them asked for', async (t) => {
  const { outside, host } = t.context;
  await using guest = await Guest.open(t, { default: 'allow' });
  t.is(await guest.resolve('bad.test'), outside.address(2));
  await guest.apply({ default: 'deny' });
  t.is(await guest.resolve('bad.test'), 'NXDOMAIN');
  await guest.apply({ default: 'deny', dns: 'open' });
  t.is(await guest.resolve('bad.test'), outside.address(2));
  await guest.apply({ default: 'deny', allow: ['good.test'] });
  t.is(await guest.resolve('bad.test'), 'NXDOMAIN');
  await guest.apply({ default: 'deny', allow: ['good.test'], dns: 'open' });
  t.is(await guest.resolve('bad.test'), outside.address(2));
  t.is(
    await guest.resolve('below.good.test'),
    'NXDOMAIN',
    'its addresses are not those of good.test',
  );
  await guest.apply({ default: 'deny', allow: ['bad.test'] });
  t.is(await guest.resolve('bad.test'), outside.address(2));
  t.is(await guest.resolve('good.test'), 'NXDOMAIN');
  const { slot } = guest;
  await host.stopAgent();
  t.is(await guest.resolve('good.test'), 'NXDOMAIN', 'also without an agent');
  await host.startAgent([slot.index]);
  await host.pool.take(slot.index);
  await guest.apply({ default: 'deny', allow: ['bad.test'] });
  t.is(await guest.resolve('good.test'), 'NXDOMAIN');
  const decisions = await host.policies.decisions(guest.sandboxId);
  t.is(decisions.find(({ name }) => name === 'good.test')?.count, 3);
  await guest.apply({ default: 'allow' });
  t.is(await guest.resolve('good.test'), outside.address(1));
});

test('the next guest of a slot has no decisions of the one before', async (t) => {
  const { host } = t.context;
  const first = await Guest.open(t, { default: 'deny' });
  t.is(await first.resolve('a.test'), 'NXDOMAIN');
  t.is((await host.policies.decisions(first.sandboxId)).length, 1);
  await first[Symbol.asyncDispose]();
  await using next = await Guest.open(t, { default: 'deny' });
  t.is(next.slot.index, first.slot.index);
  t.deepEqual(await host.policies.decisions(next.sandboxId), []);
});

test('a denied name wins over an allowed one with the same address', async (t) => {
  await using guest = await Guest.open(t, {
    ...{ default: 'deny', allow: ['good.test'], deny: ['same.test'], dns: 'open' },
  });
  await guest.resolve('good.test');
  t.true(await guest.reaches(1));
  await guest.resolve('same.test');
  t.false(await guest.reaches(1));
});

test('with rules by name, no other resolver, DNS over TLS or QUIC gets around them', async (t) => {
  const { outside } = t.context;
  await using guest = await Guest.open(t, { default: 'allow', deny: ['bad.test'] });
  t.true(await guest.reaches(3), 'the rest is allowed');
  t.true(await guest.reaches(0, 7001, 'udp'));
  t.not(await guest.resolve('bad.test', outside.resolver), outside.address(2));
  t.false(await guest.reaches(3, 853));
  t.false(await guest.reaches(0, 443, 'udp'));
  t.false(await guest.reaches(3, 443), 'without a name it could be for the denied one');
  t.false(await guest.reaches(2, 443), 'the proxy judges what goes on from there');
});

test('no forged, foreign or fragmented packet gets around a policy', async (t) => {
  const { outside } = t.context;
  const address = outside.address(0);
  await using guest = await Guest.open(t, { default: 'deny', allow: [address] });
  const seen = (): Promise<number> => sentPackets(guest.slot, 'up0');
  await guest.reaches(0);
  // The end of that connection may still be on its way.
  let before = -1;
  await waitFor('the slot to be quiet', async () => {
    const last = before;
    before = await seen();
    return before === last;
  });
  await guest.peer.run('raw-packets.py', 'spoofed', address);
  await guest.peer.run('raw-packets.py', 'protocol', address);
  await guest.peer.run('raw-packets.py', 'ipv6', address);
  t.is(await seen(), before, 'nothing left the slot');
  const long = (index: number): Promise<string> =>
    guest.peer.run('talk.py', 'udp', outside.address(index), '7001', 'x'.repeat(4000));
  t.regex(await long(0), /x{4000}$/u, 'fragments of what is allowed');
  t.notRegex(await long(2), /x{4000}$/u);
});

test('packets of connections that a slot does not know are reset, wherever they go', async (t) => {
  const { outside, host } = t.context;
  await using guest = await Guest.open(t, { default: 'deny', allow: ['good.test'] });
  await guest.resolve('good.test');
  const { gatewayAddress } = guest.slot;
  const answer = (address: string, flags: string): Promise<string> =>
    guest.peer.run('stray-packet.py', address, flags);
  const before = await sentPackets(host.router, 'uplink');
  // Allowed, denied, closed, and its own slot: none of them can be told from another.
  for (const address of [outside.address(1), outside.address(2), '169.254.1.1', gatewayAddress])
    for (const flags of ['A', 'PA', 'FA'])
      t.regex(await answer(address, flags), /R/u, `${address} ${flags}`);
  for (const flags of ['R', 'RA', 'SA']) t.is(await answer(outside.address(1), flags), 'silent');
  t.is(await sentPackets(host.router, 'uplink'), before, 'nothing left');
  t.true(await guest.reaches(1));
  t.false(await guest.reaches(2));
});

test('the addresses of names go on to another slot with the time that they have left', async (t) => {
  const { host, outside } = t.context;
  const egress = { default: 'deny', allow: ['good.test'] };
  const policy = parseNetworkPolicy({ egress });
  await using former = await Guest.open(t, egress);
  await former.resolve('good.test');
  const learnt = await host.policies.learnt(former.slot, policy);
  const [[address, until] = []] = Object.values(learnt ?? {}).flatMap(Object.entries);
  t.is(address, outside.address(1));
  t.true(Number(until) > Date.now() / 1000 + 23 * 3600);
  await using guest = await Guest.begin(t);
  await host.policies.apply(guest.slot, guest.sandboxId, policy, learnt);
  t.true(await guest.reaches(1), 'it has not asked for the name');
  t.false(await guest.reaches(2));
  await using late = await Guest.begin(t);
  const set = Object.keys(learnt ?? {})[0] ?? '';
  const over = { [set]: { [outside.address(1)]: 1 }, unknown: { [outside.address(2)]: 9e9 } };
  await host.policies.apply(late.slot, late.sandboxId, policy, over);
  t.false(await late.reaches(1), 'its time was over');
});

test('a name that resolves to what is closed opens nothing', async (t) => {
  const { outside, host } = t.context;
  const forwarded = (): Promise<number> => sentPackets(host.router, 'uplink');
  await using guest = await Guest.open(t, { default: 'deny', allow: ['*.rebound.test'] });
  for (const [at, address] of [
    '169.254.169.254',
    '127.0.0.1',
    '10.0.0.1',
    '198.18.0.9',
  ].entries()) {
    const name = `n${at}.rebound.test`;
    await outside.setName(name, address);
    t.is(await guest.resolve(name), address);
    const before = await forwarded();
    t.false((await guest.peer.run('talk.py', 'tcp', address, '7000', 'x')).endsWith(' x'));
    t.is(await forwarded(), before);
  }
});

test('a new policy counts for new connections, while open ones go on', async (t) => {
  const { outside } = t.context;
  await using guest = await Guest.open(t, { default: 'allow' });
  using held = new Held(guest.peer, outside.address(1));
  t.regex(await held.say('one'), / one$/u);
  await guest.apply({ default: 'deny', allow: ['bad.test'] });
  t.is(await held.say('two'), 'two');
  t.false(await guest.reaches(1));
  await guest.resolve('bad.test');
  t.true(await guest.reaches(2));
  await guest.apply({ default: 'deny', allow: ['good.test'] });
  t.is(await held.say('three'), 'three');
  t.false(await guest.reaches(2), 'addresses of a former rule are forgotten');
});

test('another agent keeps policies, connections, resolvers and what they have learnt', async (t) => {
  const { host, outside } = t.context;
  const egress = { default: 'deny', allow: ['good.test'] };
  await using guest = await Guest.open(t, egress);
  const { slot } = guest;
  await guest.resolve('good.test');
  using held = new Held(guest.peer, outside.address(1));
  t.regex(await held.say('one'), / one$/u);
  const resolvers = await guest.resolvers();
  await host.stopAgent();
  await host.startAgent([slot.index]);
  await host.pool.take(slot.index);
  t.is(await held.say('two'), 'two');
  await guest.apply(egress);
  t.is(await held.say('three'), 'three');
  t.true(await guest.reaches(1));
  t.deepEqual(await guest.resolvers(), resolvers);
});

test('a slot’s resolver that ended is there again with the next application of its policy', async (t) => {
  const egress = { default: 'deny', allow: ['good.test'] };
  await using guest = await Guest.open(t, egress);
  for (const pid of await guest.resolvers()) process.kill(pid, 'SIGKILL');
  t.is(await guest.resolve('good.test'), 'refused');
  await guest.apply(egress);
  t.is(await guest.resolve('good.test'), t.context.outside.address(1));
});

test('decisions tell what was tried, what decided, and how often', async (t) => {
  const { outside, host } = t.context;
  const [one, two] = [outside.address(1), outside.address(2)];
  await using guest = await Guest.open(t, { default: 'deny', allow: [one] });
  await guest.reaches(1);
  await guest.reaches(1);
  await guest.reaches(2);
  await guest.peer.run('talk.py', 'tcp', '169.254.169.254', '80', 'x');
  const read = async () => host.policies.decisions(guest.sandboxId);
  const told = (decisions: Awaited<ReturnType<typeof read>>): string[] =>
    decisions
      .map((each) => `${each.address} ${each.port} ${each.allowed} ${each.rule} ${each.count}`)
      .toSorted();
  const wanted = [`${one} 7000 true ${one} 2`, `${two} 7000 false default 1`];
  const all = [...wanted, '169.254.169.254 80 false closed 1'].toSorted();
  t.deepEqual(told(await read()), all);
  await guest.apply({ default: 'allow' });
  t.deepEqual(told(await read()), all, 'also under another policy');
  const [newest] = await read();
  t.true(Math.abs(Date.parse(newest?.time ?? '') - Date.now()) < 60_000);
});

test('nothing is left of a slot that is released', async (t) => {
  const { host } = t.context;
  const guest = await Guest.open(t, { default: 'deny', allow: ['good.test'] });
  const resolvers = await guest.resolvers();
  t.is(resolvers.length, 1);
  await guest[Symbol.asyncDispose]();
  t.is(identify(resolvers[0] ?? 0), undefined);
  t.deepEqual(await host.slots.present(), []);
});
