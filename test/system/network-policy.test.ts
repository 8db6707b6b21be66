/* Network policies from the API to what a command in a sandbox reaches. */
import anyTest, { type ExecutionContext, type TestFn } from 'ava';
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

interface Context {
  readonly outside: Outside;
  readonly stack: Stack;
  readonly api: ApiClient;
}

const test = anyTest.serial as TestFn<Context>;

test.before(async (t) => {
  const outside = await Outside.open();
  await outside.serve('http', 8080);
  const stack = await Stack.start({ ...containerSettings(), ...outside.settings });
  t.context = { outside, stack, api: await stack.newClient() };
});

test.after.always(async (t) => {
  const { stack, outside } = t.context as Partial<Context>;
  await stack?.stop();
  await outside?.[Symbol.asyncDispose]();
});

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
