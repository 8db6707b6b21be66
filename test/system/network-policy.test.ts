/* Network policies from the API to what a command in a sandbox reaches. */
import { join } from 'node:path';
import anyTest, { type ExecutionContext, type TestFn } from 'ava';
import { run } from '../../agent/system/spawn.ts';
import type { NetworkDecision } from '../../shared/schemas/network-decision.ts';
import type { ApiClient } from '../helpers/api.ts';
import { Outside } from '../helpers/outside.ts';
import {
  bring,
  containerSettings,
  createSandbox,
  forkSandbox,
  getSandbox,
  outputOf,
  removeSandbox,
  sandboxPath,
} from '../helpers/sandboxes.ts';
import { Stack } from '../helpers/stack.ts';
import { temporaryDirectory } from '../helpers/temporary.ts';

interface Context {
  readonly outside: Outside;
  readonly stack: Stack;
  readonly api: ApiClient;
}

const test = anyTest.serial as TestFn<Context>;

test.before(async (t) => {
  const outside = await Outside.open({ 'good.test': 1, 'bad.test': 2, 'a.wild.test': 3 });
  for (const port of [80, 8080]) await outside.serve('http', port);
  await serveTls(outside);
  const stack = await Stack.start({ ...containerSettings(), ...outside.settings });
  t.context = { outside, stack, api: await stack.newClient() };
});

test.after.always(async (t) => {
  const { stack, outside } = t.context as Partial<Context>;
  await stack?.stop();
  await outside?.[Symbol.asyncDispose]();
});

/** Starts a TLS server on port 443 of all addresses, with a certificate that nobody knows. */
async function serveTls(outside: Outside): Promise<void> {
  await using directory = await temporaryDirectory(); // The program reads them before it is ready.
  const { path } = directory;
  const [key, certificate] = [join(path, 'key'), join(path, 'certificate')];
  const made = [
    '-nodes',
    '-days',
    '2',
    '-subj',
    '/CN=outside',
    '-keyout',
    key,
    '-out',
    certificate,
  ];
  const kind = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1'];
  await run('openssl', ['req', '-x509', ...kind, ...made]);
  const server = ['s_server', '-www', '-accept', '443', '-key', key, '-cert', certificate];
  await outside.start(['openssl', ...server]);
}

/** The status of the answer to a request by a command in the sandbox; 000 when none came. */
const fetchIn = async (api: ApiClient, id: string, ...args: string[]): Promise<string> => {
  const command = ['curl', '-sSk', '-o', '/dev/null', '-w', "'%{http_code}'", '--max-time', '10'];
  return (await outputOf(api, id, `${[...command, ...args].join(' ')} 2>/dev/null || true`)).trim();
};

/** Whether a command in the sandbox gets an answer of the address with this index. */
async function reaches(
  { context: { api, outside } }: ExecutionContext<Context>,
  id: string,
  index: number,
): Promise<boolean> {
  const url = `http://${outside.address(index)}:8080/`;
  const command = `curl -sS -o /dev/null -w '%{http_code}' --max-time 10 ${url} || true`;
  return (await outputOf(api, id, command)).endsWith('200');
}

test('a policy holds from the first moment, over pause, stop and fork, and for another agent', async (t) => {
  const { api, outside, stack } = t.context;
  const network = { egress: { default: 'deny', allow: [outside.address(0)] } };
  const { sandbox_id: id } = await createSandbox(api, { network });
  const check = async (which = id): Promise<void> => {
    const reached = [await reaches(t, which, 0), await reaches(t, which, 1)];
    t.deepEqual(reached, [true, false]);
    t.deepEqual((await getSandbox(api, which)).network, network);
  };
  await check();
  const child = await forkSandbox(api, id);
  await check(child.sandbox_id);
  await removeSandbox(api, child.sandbox_id);
  await bring(api, id, 'pause', 'paused');
  await bring(api, id, 'resume', 'running');
  await check();
  await stack.agent.stop('SIGKILL');
  await stack.startAgent();
  await check();
  await bring(api, id, 'stop', 'stopped');
  t.deepEqual((await api.call('GET', `${sandboxPath(id)}/network`)).body, {
    success: true,
    data: network,
  });
  await bring(api, id, 'start', 'running');
  await check();
  await removeSandbox(api, id);
});

test('a policy is replaced while the sandbox runs, and decisions tell what it did', async (t) => {
  const { api, outside } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  const path = `${sandboxPath(id)}/network`;
  t.true(await reaches(t, id, 1));
  const given = { egress: { default: 'allow', deny: [`${outside.address(1)}/32`] } };
  const put = await api.call('PUT', path, given);
  const effective = { egress: { default: 'allow', deny: [outside.address(1)] } };
  t.like(put, { status: 200, body: { success: true, data: effective } });
  t.deepEqual((await getSandbox(api, id)).network, effective);
  t.false(await reaches(t, id, 1));
  t.true(await reaches(t, id, 2));

  const found: NetworkDecision[] = [];
  for (let cursor = '', isFirst = true; isFirst || cursor !== ''; isFirst = false) {
    const query = cursor === '' ? '?limit=1' : `?limit=1&cursor=${cursor}`;
    const reply = await api.call<{ data: { decisions: NetworkDecision[] }; nextCursor?: string }>(
      'GET',
      `${path}/decisions${query}`,
    );
    t.is(reply.status, 200);
    found.push(...reply.body.data.decisions);
    cursor = reply.body.nextCursor ?? '';
  }
  const toServer = found.filter(({ port }) => port === 8080);
  const told = toServer.map(({ address, allowed, rule }) => `${address} ${allowed} ${rule}`);
  t.deepEqual(told.toSorted(), [
    `${outside.address(1)} false ${outside.address(1)}`,
    `${outside.address(1)} true default`,
    `${outside.address(2)} true default`,
  ]);
  t.deepEqual(
    found.map(({ time }) => time),
    found.map(({ time }) => time).toSorted((a, b) => (a < b ? 1 : -1)),
  );
  const garbled = await api.call('GET', `${path}/decisions?cursor=x`);
  t.like(garbled, { status: 400, body: { code: 'bad_request' } });

  await bring(api, id, 'pause', 'paused');
  t.like(await api.call('PUT', path, {}), { status: 409, body: { code: 'sandbox_not_running' } });
  await removeSandbox(api, id);
});

test('names decide on ports 80 and 443 by what is asked for, on others by their addresses', async (t) => {
  const { api, outside } = t.context;
  const network = { egress: { default: 'deny', allow: ['good.test', '*.wild.test'] } };
  const { sandbox_id: id } = await createSandbox(api, { network });
  const status = (...args: string[]): Promise<string> => fetchIn(api, id, ...args);
  for (const scheme of ['http', 'https']) {
    t.is(await status(`${scheme}://good.test/`), '200', scheme);
    t.is(await status(`${scheme}://a.wild.test/`), '200', scheme);
  }
  t.is(await status('http://good.test:8080/'), '200');
  t.is(await status('http://bad.test/'), '000', 'the name is not looked up');
  t.is(await status('https://bad.test/'), '000');
  t.is(await status('http://bad.test:8080/'), '000');
  t.is(await status(`http://${outside.address(1)}/`), '403', 'an address around the rule');
  t.is(await status(`https://${outside.address(2)}/`), '000');
  const falsely = ['--resolve', `bad.test:80:${outside.address(1)}`];
  t.is(await status(...falsely, 'http://bad.test/'), '403', 'the proxy says why');

  const path = `${sandboxPath(id)}/network`;
  const listed = await api.data<{ decisions: NetworkDecision[] }>('GET', `${path}/decisions`);
  const told = (name: string): NetworkDecision | undefined =>
    listed.decisions.find((each) => each.name === name && each.port === 80);
  t.like(told('good.test'), { allowed: true, rule: 'good.test', count: 1 });
  t.like(told('bad.test'), { allowed: false, rule: 'default' });

  await api.data('PUT', path, { egress: { default: 'allow', deny: ['good.test'] } });
  t.is(await status('http://bad.test/'), '200');
  t.is(await status('http://good.test/'), '403');
  await removeSandbox(api, id);
});

test('where everything is denied, other names do not exist until the policy opens DNS', async (t) => {
  const { api, outside, stack } = t.context;
  const network = { egress: { default: 'deny', allow: [outside.address(0)] } };
  const { sandbox_id: id } = await createSandbox(api, { network });
  const path = `${sandboxPath(id)}/network`;
  const resolve = async (name: string, which = id): Promise<string> =>
    (await outputOf(api, which, `getent ahostsv4 ${name} | head -1 || true`)).split(' ')[0] ?? '';
  const leak = 'secret.outside.test';
  const check = async (which = id): Promise<void> => {
    const before = outside.asked.length;
    t.is(await resolve('good.test', which), '');
    t.is(await resolve(leak, which), '');
    t.deepEqual(outside.asked.slice(before), []);
    const told = `${sandboxPath(which)}/network/decisions`;
    const { decisions } = await api.data<{ decisions: NetworkDecision[] }>('GET', told);
    const kind = { protocol: 'udp', port: 53, allowed: false, rule: 'default' } as const;
    t.like(
      decisions.find(({ name }) => name === leak),
      kind,
    );
  };
  await check();
  const child = await forkSandbox(api, id);
  await check(child.sandbox_id);
  await removeSandbox(api, child.sandbox_id);
  await bring(api, id, 'stop', 'stopped');
  await bring(api, id, 'start', 'running');
  await stack.agent.stop('SIGKILL');
  await stack.startAgent();
  await check();
  const open = { egress: { ...network.egress, dns: 'open' } };
  t.deepEqual(await api.data('PUT', path, open), open);
  t.deepEqual((await getSandbox(api, id)).network, open);
  t.is(await resolve('good.test'), outside.address(1));
  const other = { egress: { default: 'deny', dns: 'closed' } };
  t.like(await api.call('PUT', path, other), { status: 400, body: { code: 'bad_request' } });
  await removeSandbox(api, id);
});

test('a resume cancels a pause that waits for a request, and nothing notices', async (t) => {
  const { api, outside } = t.context;
  const network = { egress: { default: 'allow', drain_on_pause: [outside.address(4)] } };
  const { sandbox_id: id } = await createSandbox(api, { network });
  const log = '/root/answer';
  const command = `setsid curl -sS -o /dev/null -w '%{http_code}' http://${outside.address(4)}/slow/10 >${log} 2>&1 & sleep 0.5`;
  await outputOf(api, id, command);
  const paused = await api.data<{ status: string; checkpoint?: string }>(
    'POST',
    `${sandboxPath(id)}/pause`,
  );
  t.is(paused.status, 'pausing');
  t.truthy(paused.checkpoint);
  t.is((await getSandbox(api, id)).status, 'pausing');
  const listed = await api.data<{ sandboxes: { sandbox_id: string; status: string }[] }>(
    'GET',
    '/api/sandboxes',
  );
  t.is(listed.sandboxes.find(({ sandbox_id: each }) => each === id)?.status, 'pausing');
  const exec = await api.call('POST', `${sandboxPath(id)}/execs`, { command: 'true' });
  t.like(exec, { status: 409, body: { code: 'sandbox_not_running' } });
  t.is((await api.data<{ status: string }>('POST', `${sandboxPath(id)}/resume`)).status, 'running');
  t.like(await getSandbox(api, id), {
    status: 'running',
    exit_message: 'its pause was cancelled: resume was asked for',
  });
  const wait = `until [ -s ${log} ]; do sleep 0.1; done; cat ${log}`;
  t.is((await outputOf(api, id, wait)).trim(), '200');
  t.is((await getSandbox(api, id)).status, 'running');
  await removeSandbox(api, id);
});

test('a pause waits for a request that the policy names', async (t) => {
  const { api, outside } = t.context;
  const network = { egress: { default: 'allow', drain_on_pause: [outside.address(4)] } };
  const { sandbox_id: id } = await createSandbox(api, { network });
  const log = '/root/answer';
  const command = `setsid curl -sS -o /dev/null -w '%{http_code}' http://${outside.address(4)}/slow/3 >${log} 2>&1 & sleep 0.5`;
  await outputOf(api, id, command);
  await bring(api, id, 'pause', 'paused');
  await bring(api, id, 'resume', 'running');
  t.is((await outputOf(api, id, `cat ${log}`)).trim(), '200');
  await removeSandbox(api, id);
});
