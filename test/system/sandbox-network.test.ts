/* Networks of sandboxes, from inside them, with an outside that is not the internet. */
import anyTest, { type TestFn } from 'ava';
import type { ApiClient } from '../helpers/api.ts';
import { Outside } from '../helpers/outside.ts';
import {
  bring,
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
  const stack = await Stack.start({ ...containerSettings(), ...outside.settings });
  t.context = { outside, stack, api: await stack.newClient() };
});

test.after.always(async (t) => {
  const { stack, outside } = t.context as Partial<typeof t.context>;
  await stack?.stop();
  await outside?.[Symbol.asyncDispose]();
});

const fetchName = 'curl -sS --max-time 10 http://outside.test/';

test('a container has its network again after a pause, a stop and a fork', async (t) => {
  const { api, outside } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  const client = async (): Promise<unknown> =>
    (JSON.parse(await outputOf(api, id, fetchName)) as { client: string }).client;
  t.is(await client(), outside.hostAddress);
  await bring(api, id, 'pause', 'paused');
  await bring(api, id, 'resume', 'running');
  t.is(await client(), outside.hostAddress);
  await bring(api, id, 'stop', 'stopped');
  await bring(api, id, 'start', 'running');
  t.is(await client(), outside.hostAddress);
  await removeSandbox(api, id);
});
