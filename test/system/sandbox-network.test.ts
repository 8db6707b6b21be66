/* Networks of sandboxes, from inside them as root, with an outside that is not the internet. */
import { once } from 'node:events';
import { createServer, type AddressInfo } from 'node:net';
import { networkInterfaces } from 'node:os';
import anyTest, { type TestFn } from 'ava';
import type { ApiClient } from '../helpers/api.ts';
import {
  keepsAddresses,
  keepsNetwork,
  probeFrom,
  putProgram,
  seenAs,
} from '../helpers/network-checks.ts';
import { Outside } from '../helpers/outside.ts';
import {
  beginExec,
  createSandbox,
  endedExec,
  outputOf,
  removeSandbox,
  sandboxSettings,
} from '../helpers/sandboxes.ts';
import { Stack } from '../helpers/stack.ts';

const { serial: test } = anyTest as TestFn<{ outside: Outside; stack: Stack; api: ApiClient }>;

test.before(async (t) => {
  const outside = await Outside.open();
  await outside.serve('http', 80);
  await outside.serve('tcp-echo', 7000);
  await outside.serve('udp-echo', 7001);
  const stack = await Stack.start({ ...sandboxSettings(), ...outside.settings });
  t.context = { outside, stack, api: await stack.newClient() };
});

test.after.always(async (t) => {
  const { stack, outside } = t.context as Partial<typeof t.context>;
  await stack?.stop();
  await outside?.[Symbol.asyncDispose]();
});

test('root in a sandbox reaches the outside, and nothing of the system it runs on', async (t) => {
  const { api, outside, stack } = t.context;
  const server = createServer().listen(0, '0.0.0.0');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  await outside.addAddress('169.254.169.254');
  const [{ sandbox_id: id }, { sandbox_id: neighbour }] = await Promise.all([
    createSandbox(api),
    createSandbox(api),
  ]);
  await beginExec(api, neighbour, 'python3 -m http.server 7000');
  t.is(await seenAs(api, id), outside.hostAddress);
  const talk = await putProgram(api, id, 'talk.py');
  const answer = await outputOf(api, id, `${talk} udp ${outside.address(0)} 7001 hello`);
  t.is(answer, `${outside.hostAddress} hello\n`);

  const own = Object.values(networkInterfaces()).flatMap((all) => all ?? []);
  const hosts = own.filter(({ family }) => family === 'IPv4').map(({ address }) => address);
  const ports = ['REDIS_URL', 'PUBLIC_BASE_URL', 'AGENT_PUBLIC_URL'].map((name) =>
    Number(new URL(stack.environment[name] ?? '').port),
  );
  const services = hosts.flatMap((host) => [port, ...ports].map((each) => `${host}:${each}`));
  const slots = ['198.18.0.0', '198.18.0.1', '198.18.64.0', '198.18.64.1', '198.18.128.1'];
  const others = [...slots, '169.254.169.254', '10.255.255.1', '10.255.255.2'];
  const targets = [...services, ...others.map((address) => `${address}:7000`)];
  const found = await probeFrom(api, id, [...targets, `${outside.address(3)}:7000`]);
  t.is(found.pop(), 'connected');
  t.deepEqual(
    found.filter((each) => each === 'connected'),
    [],
  );
  t.is((await outputOf(api, id, 'ip -6 addr show scope global 2>/dev/null; true')).trim(), '');
  await Promise.all([removeSandbox(api, id), removeSandbox(api, neighbour)]);
  server.close();
});

test('root in a sandbox gets around no policy', async (t) => {
  const { api, outside } = t.context;
  await outside.setName('good.test', outside.address(1));
  const network = { egress: { default: 'deny', allow: ['good.test'] } };
  const { sandbox_id: id } = await createSandbox(api, { network });
  const talk = await putProgram(api, id, 'talk.py');
  const say = async (...args: string[]): Promise<string> =>
    (await outputOf(api, id, `${talk} ${args.join(' ')}`)).trim();
  const [known = '', good = '', other = ''] = [0, 1, 2].map((index) => outside.address(index));
  t.is(await say('dns', '10.255.255.1', 'udp', 'good.test'), good);
  t.regex(await say('tcp', good, '7000', 'hello'), / hello$/u);
  const refused = [
    ['tcp', other, '7000', 'hello'],
    ['udp', known, '7001', 'hello'],
    ['dns', outside.resolver, 'udp', 'good.test'],
    ['dns', outside.resolver, 'tcp', 'good.test'],
  ];
  for (const args of refused) t.regex(await say(...args), /^(silent|refused)$/u, args.join(' '));
  const fetched = async (...args: string[]): Promise<string> =>
    outputOf(api, id, `curl -sS -o /dev/null -w '%{http_code}' ${args.join(' ')} || true`);
  t.is(await fetched('http://good.test/'), '200');
  t.is(await fetched(`http://${good}/`), '403');
  t.is(await fetched('-H', 'Host:outside.test', 'http://good.test/'), '403');
  await removeSandbox(api, id);
});

test('a sandbox has its network again after a pause, a fork, a stop', (t) =>
  keepsNetwork(t, t.context.api, t.context.outside.hostAddress));

test('a connection ends at once over a pause and in a copy, and known addresses stay allowed', (t) =>
  keepsAddresses(t, t.context.api, 'outside.test', { copiesMemory: true }));

test('an agent that is killed and started again keeps connections of its sandboxes', async (t) => {
  const { api, outside, stack } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  const talk = await putProgram(api, id, 'keep-talking.py');
  const begun = await beginExec(api, id, `${talk} ${outside.address(0)} 7000 6`);
  await stack.agent.stop('SIGKILL');
  await stack.startAgent();
  t.is(await seenAs(api, id), outside.hostAddress, 'and new ones are made');
  const { exit_code: code, stdout = '' } = await endedExec(api, id, begun.body.data.exec_id);
  t.is(code, 0);
  const lines = stdout.trim().split('\n');
  t.is(lines[0], `${outside.hostAddress} 0`);
  t.deepEqual(
    lines.slice(1),
    lines.slice(1).map((_, index) => String(index + 1)),
  );
  t.true(lines.length > 20);
  await removeSandbox(api, id);
});
