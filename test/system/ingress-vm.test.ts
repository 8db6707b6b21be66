/* The ingress to a sandbox that is a virtual machine. */
import { readFile } from 'node:fs/promises';
import anyTest, { type TestFn } from 'ava';
import type { ApiClient } from '../helpers/api.ts';
import { ask, expose, hostOf, newPortToken, serveOneAtATime } from '../helpers/ingress.ts';
import { freePorts } from '../helpers/ports.ts';
import {
  bring,
  createSandbox,
  forkSandbox,
  getSandbox,
  outputOf,
  removeSandbox,
  sandboxSettings,
} from '../helpers/sandboxes.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';

const CONNECTIONS = new URL('../fixtures/inherited-connections.py', import.meta.url);

interface Context {
  stack: Stack;
  api: ApiClient;
  own: number;
}

const test = anyTest as TestFn<Context>;

test.before(async (t) => {
  const [own = 0] = await freePorts(1);
  t.context.stack = await Stack.start({
    ...sandboxSettings(),
    INGRESS_PORT: `${own}`,
    INGRESS_ANSWER_MS: '15000',
  });
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

test('a server that serves one connection at a time answers after a resume and in a fork', async (t) => {
  const { api, own } = t.context;
  const { sandbox_id: id } = await createSandbox(api, { ports: [8000] });
  await serveOneAtATime(api, id, 8000);
  const answers = async (sandboxId: string): Promise<number> =>
    (await ask(own, hostOf(8000, sandboxId), '/')).status;
  await waitFor('the server', async () => (await answers(id)) === 200, 60_000);
  const { sandbox_id: copy } = await forkSandbox(api, id); // While a connection is kept.
  await expose(api, copy, 8000);
  t.is(await answers(copy), 200, 'the copy');
  t.is(await answers(id), 200, 'its source');
  await bring(api, id, 'pause', 'paused');
  await bring(api, id, 'resume', 'running');
  t.is(await answers(id), 200, 'after a resume');
  await removeSandbox(api, copy);
  await removeSandbox(api, id);
});

test('a resumed guest has ended its connections with the gateway in all of its networks', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api, {});
  const program = await readFile(CONNECTIONS, 'utf8');
  await outputOf(api, id, `cat >/root/connections.py <<'END'\n${program}END`);
  await outputOf(api, id, 'python3 /root/connections.py interface');
  const run = 'setsid unshare --net python3 /root/connections.py /root/go >/root/log 2>&1 &';
  await outputOf(api, id, `${run} until [ -s /root/log ]; do sleep 0.1; done`);
  await bring(api, id, 'pause', 'paused');
  await bring(api, id, 'resume', 'running');
  const read = `touch /root/go; until [ $(wc -l </root/log) -gt 1 ]; do sleep 0.1; done`;
  const log = await outputOf(api, id, `${read}; cat /root/log`);
  // Either end of such a connection here may be the one that is ended.
  t.regex(log.trim(), /^ready\nECONN(?:ABORTED|RESET) ECONN(?:ABORTED|RESET) EAGAIN$/u);
  await removeSandbox(api, id);
});
