/*
 * The proxy as a process in the namespace of a router, with connections that the slot's rules
 * redirect to it.
 */
import { randomBytes } from 'node:crypto';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { pino } from 'pino';
import type { EgressProxy } from '../../../../agent/network/egress/egress-proxy.ts';
import { EgressClient } from '../../../../agent/network/egress/egress-client.ts';
import { endProxy } from '../../../../agent/network/egress/start-proxy.ts';
import { authorityOf } from '../../../../agent/network/egress/authority.ts';
import { egressGroup, openEgress } from '../../../../agent/network/open-egress.ts';
import { loadRules } from '../../../../agent/network/slots/nft.ts';
import { PROXIED_MARK } from '../../../../agent/network/slots/router-plan.ts';
import type { SlotPlan } from '../../../../agent/network/slots/slot.ts';
import { killProcess, readPids, trackingGroup } from '../../../../agent/system/cgroup.ts';
import { toEgressRules } from '../../../../shared/network/egress-rules.ts';
import { parseNetworkPolicy } from '../../../../shared/network/parse-policy.ts';
import type { EgressPolicy } from '../../../../shared/schemas/network-policy.ts';
import { Outside } from '../../../helpers/outside.ts';
import { RoutedHost } from '../../../helpers/routed-host.ts';
import { TestPeer, withinSlot } from '../../../helpers/slots.ts';
import { temporaryDirectory } from '../../../helpers/temporary.ts';
import { waitFor } from '../../../helpers/wait.ts';

const log = pino({ level: 'silent' });
const UID = 600_100_000 + 999_999;
const SECRET = 'sk-0123456789-abcdefghij';

interface Parts {
  readonly outside: Outside;
  readonly host: RoutedHost;
  readonly slot: SlotPlan;
  readonly peer: TestPeer;
  /** Opens the proxy like an agent that starts. */
  readonly openEgress: () => Promise<EgressProxy>;
  readonly pids: () => Promise<number[]>;
  /** Has curl ask in the guest's place, for a site at an address of the outside. */
  readonly curl: (url: string, address: string, ...more: string[]) => Promise<string>;
}

async function open(undo: AsyncDisposableStack): Promise<Parts & { dataDir: string }> {
  const outside = undo.use(await Outside.open({ 'api.test': 1, 'evil.test': 2 }));
  const { path: dataDir } = undo.use(await temporaryDirectory());
  const host = undo.use(await RoutedHost.open(outside));
  const slot = await host.pool.lease();
  const peer = undo.use(await TestPeer.on(slot));
  await loadRules(
    slot.namespace,
    'flush chain inet berth egress\n' +
      `add rule inet berth egress tcp dport { 80, 443 } meta mark set ${PROXIED_MARK} accept\n`,
  );
  const outsideKeys = await authorityOf(randomBytes(32), 'outside');
  const trustedCertificates = join(dataDir, 'trusted.pem');
  await writeFile(trustedCertificates, outsideKeys.certificate);
  const groups = host.groups;
  undo.defer(() => endProxy(egressGroup(groups)));
  const network = { resolvers: [], reachable: [] };
  const { group, cgroups } = egressGroup(groups);
  const curl = async (url: string, address: string, ...more: string[]): Promise<string> => {
    const { hostname, port } = new URL(url);
    const at = `${hostname}:${port === '' ? (url.startsWith('https') ? 443 : 80) : port}:${address}`;
    const options = ['-sS', '--max-time', '15', '--noproxy', '*', '--resolve', at];
    return withinSlot(peer, 'sh', '-c', 'curl "$@" 2>&1 || true', 'sh', ...options, ...more, url);
  };
  return {
    ...{ outside, host, slot, peer, dataDir, curl },
    openEgress: () =>
      openEgress({
        ...{ hostId: host.hostId, dataDir, groups, network, uidBase: 600_100_000 },
        ...{ trustedCertificates, leased: [slot.index], log },
      }),
    pids: () => readPids(join(trackingGroup(cgroups, group), 'cgroup.procs')),
  };
}

const rulesOf = (egress: EgressPolicy) => toEgressRules(parseNetworkPolicy({ egress }));

test('a proxy judges what is redirected to it, and outlives its agent without privileges', async (t) => {
  await using undo = new AsyncDisposableStack();
  const { outside, slot, dataDir, curl, openEgress: start, pids } = await open(undo);
  await outside.serve('http', 80);
  const first = await start();
  t.deepEqual(await pids(), []); // Nobody needs it yet.
  await first.setRules(slot, 'sbx-1', rulesOf({ default: 'deny', allow: ['api.test'] }));

  t.regex(await curl('http://api.test/x', outside.address(1)), /"path": "\/x"/u);
  // The proxy goes to an address of the name, whatever the guest resolved.
  t.regex(await curl('http://api.test/x', outside.address(2)), /"path": "\/x"/u);
  t.regex(await curl('http://evil.test/', outside.address(2)), /policy denies evil.test/u);
  const decisions = await first.decisions(slot);
  t.deepEqual(
    decisions.map(({ name, allowed, rule, count }) => ({ name, allowed, rule, count })),
    [
      { name: 'evil.test', allowed: false, rule: 'default', count: 1 },
      { name: 'api.test', allowed: true, rule: 'api.test', count: 2 },
    ],
  );

  const [pid = 0] = await pids();
  const status = await readFile(`/proc/${pid}/status`, 'utf8');
  t.regex(status, new RegExp(`^Uid:\\s${UID}\\s${UID}\\s${UID}\\s${UID}$`, 'mu'));
  t.regex(status, /^Groups:\s*$/mu);
  t.regex(status, /^Cap(Prm|Eff):\s0+\nCap(Prm|Eff):\s0+$/mu);
  t.regex(status, /^NoNewPrivs:\s1$/mu);
  t.regex(await readFile(`/proc/${pid}/limits`, 'utf8'), /^Max core file size\s+0\s+0/mu);
  t.is(
    await readFile(`/proc/${pid}/environ`, 'utf8').then((text) => text.includes('SECRET')),
    false,
  );

  // The agent ends and leaves the slot; the next one finds the proxy and its rules.
  await first.close();
  t.deepEqual(await pids(), [pid]);
  t.regex(await curl('http://api.test/y', outside.address(1)), /"path": "\/y"/u);
  const second = await start();
  t.is((await second.decisions(slot)).find(({ name }) => name === 'api.test')?.count, 3);
  await second.setRules(slot, 'sbx-1', rulesOf({ default: 'deny', allow: ['evil.test'] }));
  t.regex(await curl('http://api.test/z', outside.address(1)), /policy denies api.test/u);

  // The agent starts the proxy again, with its rules, when it fails.
  killProcess(pid);
  await waitFor('the next proxy', async () => {
    const answer = await curl('http://evil.test/', outside.address(2), '--connect-timeout', '2');
    return answer.includes('"path"');
  });
  t.notDeepEqual(await pids(), [pid]);
  await second.removeRules(slot);
  t.notRegex(await curl('http://evil.test/', outside.address(2)), /"path"/u);
  await second.close();
  t.deepEqual(await pids(), []);
  await t.throwsAsync(new EgressClient(join(dataDir, 'egress.sock')).call('GET', '/version'));
});

test('secrets of a brokered request are nowhere but in the request', async (t) => {
  await using undo = new AsyncDisposableStack();
  const { outside, slot, dataDir, curl, openEgress: start, pids } = await open(undo);
  await outside.serve('http', 80);
  const proxy = await start();
  const headers = { authorization: `Bearer ${SECRET}` };
  const allow = [{ target: 'api.test', transform: { headers } }];
  await proxy.setRules(slot, 'sbx-1', rulesOf({ default: 'deny', allow }));
  const bundle = join(dataDir, 'guest.pem');
  await writeFile(bundle, await proxy.certificate('sbx-1'));
  // Nothing serves HTTPS there; what counts is that the guest's TLS ends at the proxy.
  const answer = await curl('https://api.test/', outside.address(1), '--cacert', bundle);
  t.regex(answer, /api.test could not be reached/u);
  const plain = await curl('http://api.test/', outside.address(1));
  t.regex(plain, /"path": "\/"/u);
  t.false(plain.includes(SECRET));
  const [pid = 0] = await pids();
  for (const file of ['cmdline', 'environ']) {
    t.false((await readFile(`/proc/${pid}/${file}`, 'latin1')).includes(SECRET));
  }
  t.is(await readFile(join(dataDir, 'egress.err'), 'utf8'), '');
  t.false(JSON.stringify(await proxy.decisions(slot)).includes(SECRET));
  await proxy.removeRules(slot);
  await proxy.close();
});
