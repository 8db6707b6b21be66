/* Networks of sandboxes that are containers, from inside them as root. */
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
  containerSettings,
  createSandbox,
  outputOf,
  removeSandbox,
} from '../helpers/sandboxes.ts';
import { Stack } from '../helpers/stack.ts';

const test = anyTest as TestFn<{ outside: Outside; stack: Stack; api: ApiClient }>;

test.before(async (t) => {
  const outside = await Outside.open();
  await outside.serve('http', 80);
  await outside.serve('tcp-echo', 7000);
  // Prewarmed ones have their link before they are anybody's.
  const settings = { ...containerSettings(), SANDBOX_PREWARMED: '1', ...outside.settings };
  const stack = await Stack.start(settings);
  t.context = { outside, stack, api: await stack.newClient() };
});

test.after.always(async (t) => {
  const { stack, outside } = t.context as Partial<typeof t.context>;
  await stack?.stop();
  await outside?.[Symbol.asyncDispose]();
});

test('root in a container has a network that it cannot change, and low ports', async (t) => {
  const { api, outside, stack } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  t.is(await seenAs(api, id), outside.hostAddress);
  const links = "sed -n 's/^ *\\([a-z0-9]*\\):.*/\\1/p' /proc/net/dev | sort | tr '\\n' ' '";
  t.is(await outputOf(api, id, links), 'eth0 lo ');
  const spoof = await putProgram(api, id, 'spoof.py');
  const raw = `${spoof} 10.255.255.3 02:00:00:00:00:02 ${outside.address(0)} 80 x 2>&1 | tail -n 1`;
  t.regex(await outputOf(api, id, raw), /not (?:permitted|implemented)/u);
  await beginExec(api, id, 'python3 -m http.server 81');
  const redis = new URL(stack.environment['REDIS_URL'] ?? '').port;
  const closed = [`${outside.hostAddress}:${redis}`, `10.255.255.1:80`, '198.18.128.1:80'];
  const found = await probeFrom(api, id, [`${outside.address(1)}:80`, ...closed]);
  t.deepEqual(found, ['connected', 'silent', 'silent', 'silent']);
  const port =
    'for try in $(seq 50); do curl -s http://10.255.255.2:81/ >/dev/null && break; sleep 0.1; done';
  await outputOf(api, id, `${port}; curl -sSf http://10.255.255.2:81/ >/dev/null`);
  await removeSandbox(api, id);
});

test('a container has its network again after a pause, a fork, a stop', (t) =>
  keepsNetwork(t, t.context.api, t.context.outside.hostAddress));

test('a connection ends at once over a pause and in a copy, and known addresses stay allowed', (t) =>
  keepsAddresses(t, t.context.api, 'outside.test', { copiesMemory: false }));
