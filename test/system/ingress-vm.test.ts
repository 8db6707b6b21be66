/* The ingress to a sandbox that is a virtual machine. */
import anyTest, { type TestFn } from 'ava';
import type { ApiClient } from '../helpers/api.ts';
import { ask, hostOf, newPortToken } from '../helpers/ingress.ts';
import { freePorts } from '../helpers/ports.ts';
import {
  bring,
  createSandbox,
  getSandbox,
  outputOf,
  sandboxSettings,
} from '../helpers/sandboxes.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';

interface Context {
  stack: Stack;
  api: ApiClient;
  own: number;
}

const test = anyTest as TestFn<Context>;

test.before(async (t) => {
  const [own = 0] = await freePorts(1);
  t.context.stack = await Stack.start({ ...sandboxSettings(), INGRESS_PORT: `${own}` });
  Object.assign(t.context, { own, api: await t.context.stack.newClient() });
});

test.after.always((t) => t.context.stack.stop());

test('a port of a virtual machine is reached, and a request wakes it from its pause', async (t) => {
  const { api, own } = t.context;
  const { sandbox_id: id } = await createSandbox(api, { ports: [8000] });
  await outputOf(api, id, 'cd /etc; setsid python3 -m http.server 8000 >/dev/null 2>&1 &');
  await outputOf(api, id, 'cd /usr; setsid python3 -m http.server 8001 >/dev/null 2>&1 &');
  const host = hostOf(8000, id);
  const served = async (): Promise<boolean> => (await ask(own, host, '/hostname')).status === 200;
  await waitFor('the server', served, 60_000);
  t.is((await ask(own, hostOf(8001, id))).status, 401);
  const { token } = await newPortToken(api, id, 8001);
  const headers = { 'x-service-token': token };
  await waitFor('the other server', async () => {
    return (await ask(own, hostOf(8001, id), '/', { headers })).status === 200;
  });
  await bring(api, id, 'pause', 'paused');
  t.is((await ask(own, hostOf(8001, id))).status, 401);
  t.is((await getSandbox(api, id)).status, 'paused');
  t.is((await ask(own, hostOf(8001, id), '/', { headers })).status, 200);
  t.is((await getSandbox(api, id)).status, 'running');
});
