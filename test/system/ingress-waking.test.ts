/*
 * Requests to ports of sandboxes that do not run, of idle ones, and of those whose agent restarts.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import anyTest, { type ExecutionContext, type TestFn } from 'ava';
import { newSandboxId } from '../../shared/ids.ts';
import type { ApiClient } from '../helpers/api.ts';
import { ask, hostOf, newPortToken } from '../helpers/ingress.ts';
import { freePorts } from '../helpers/ports.ts';
import {
  bring,
  containerSettings,
  createSandbox,
  getSandbox,
  outputOf,
  sandboxPath,
} from '../helpers/sandboxes.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';

const PORT = 8000;

interface Context {
  stack: Stack;
  api: ApiClient;
  /** Port of the agent that has the sandboxes, and of one that has none. */
  own: number;
  other: number;
}

const test = anyTest as TestFn<Context>;
type Test = ExecutionContext<Context>;

test.before(async (t) => {
  const [own = 0, other = 0] = await freePorts(2);
  const stack = await Stack.start({ ...containerSettings(), INGRESS_PORT: `${own}` });
  t.context.stack = stack;
  const second = await stack.addAgent({ INGRESS_PORT: `${other}`, SANDBOX_RUNTIME: 'microvm' });
  await second.start();
  Object.assign(t.context, { own, other, api: await stack.newClient() });
});

test.after.always((t) => t.context.stack.stop());

/** A web server in the guest with the files of /etc, which takes seconds to answer a POST. */
const SERVER = `
import http.server, time
class Handler(http.server.SimpleHTTPRequestHandler):
  def do_POST(self):
    time.sleep(4.5)
    self.send_response(200)
    self.end_headers()
http.server.ThreadingHTTPServer(('', ${PORT}), Handler).serve_forever()
`;
const SERVE = `cd /etc; setsid python3 -c "${SERVER}" >/dev/null 2>&1 &`;

async function newServer(
  { context }: Test,
  body: object = {},
): Promise<{ id: string; host: string }> {
  const { api, own } = context;
  const { sandbox_id: id } = await createSandbox(api, { ports: [PORT], ...body });
  await outputOf(api, id, SERVE);
  const host = hostOf(PORT, id);
  await waitFor('the server', async () => (await ask(own, host, '/hostname')).status === 200);
  return { id, host };
}

const statusOf = async ({ context: { api } }: Test, id: string): Promise<string> =>
  (await getSandbox(api, id)).status;

/** How often the sandbox was about to enter a state, as its host's log has it. */
async function entriesOf({ context: { stack } }: Test, id: string, state: string): Promise<number> {
  await sleep(400); // The log is flushed.
  const lines = (await stack.agent.readLog()).split('\n');
  const isEntry = (line: string): boolean =>
    line.includes('sandbox:transitioned') && line.includes(id) && line.includes(`"${state}"`);
  return lines.filter(isEntry).length;
}

test.serial('requests to a paused sandbox wake it once and are answered', async (t) => {
  const { api, own, other } = t.context;
  const { id, host } = await newServer(t);
  await bring(api, id, 'pause', 'paused');
  const replies = await Promise.all(
    Array.from({ length: 40 }, (_, i) => ask(i % 3 === 0 ? other : own, host, '/hostname')),
  );
  t.deepEqual([...new Set(replies.map(({ status }) => status))], [200]);
  t.is(await statusOf(t, id), 'running');
  t.is(await entriesOf(t, id, 'pending_resume'), 1);
});

test.serial('requests that may not pass leave a sandbox as it is', async (t) => {
  const { api, own, other } = t.context;
  const { id } = await newServer(t);
  const neighbour = await newPortToken(api, (await createSandbox(api)).sandbox_id, 81);
  await bring(api, id, 'pause', 'paused');
  for (const port of [own, other]) {
    for (const headers of [{}, { 'x-service-token': neighbour.token }]) {
      t.is((await ask(port, hostOf(81, id), '/', { headers })).status, 401);
    }
  }
  t.is(await statusOf(t, id), 'paused');
  t.is(await entriesOf(t, id, 'pending_resume'), 0);
  const { token } = await newPortToken(api, id, 81);
  // Nothing listens there, but the request may pass.
  const headers = { 'x-service-token': token };
  t.is((await ask(own, hostOf(81, id), '/', { headers })).status, 502);
  t.is(await statusOf(t, id), 'running');
});

test.serial('a request to a stopped sandbox starts it, and waits for its service', async (t) => {
  const { api, own } = t.context;
  const { id, host } = await newServer(t);
  await bring(api, id, 'stop', 'stopped');
  const asked = ask(own, host, '/hostname');
  await waitFor('the sandbox to run', async () => (await statusOf(t, id)) === 'running');
  await outputOf(api, id, SERVE);
  t.is((await asked).status, 200);
});

test.serial('a port that a service published wakes its paused sandbox', async (t) => {
  const { api, own } = t.context;
  const { id, host } = await newServer(t, { ports: [], enable_service_ingress: true });
  await bring(api, id, 'pause', 'paused');
  t.is((await ask(own, hostOf(8001, id))).status, 401);
  t.is(await statusOf(t, id), 'paused');
  t.is((await ask(own, host, '/hostname')).status, 200);
});

test.serial('requests keep a sandbox from being idle, for as long as they last', async (t) => {
  const { api, own, other } = t.context;
  const { id, host } = await newServer(t, { idle_ttl_seconds: 2 });
  const long = ask(own, host, '/hostname', { method: 'POST' });
  const before = (await getSandbox(api, id)).last_active_at;
  await sleep(4_000);
  t.is(await statusOf(t, id), 'running');
  t.is((await long).status, 200);
  for (let round = 0; round < 4; round += 1) {
    t.is((await ask(other, host, '/hostname')).status, 200);
    await sleep(1_000);
  }
  t.is(await statusOf(t, id), 'running');
  const paused = await waitFor('the sandbox to be paused', async () => {
    const sandbox = await getSandbox(api, id);
    return sandbox.status === 'paused' && sandbox;
  });
  t.true(Date.parse(paused.last_active_at) > Date.parse(before));
});

test.serial('a pause cuts requests off, and the next one wakes the sandbox', async (t) => {
  const { api, own } = t.context;
  const { id, host } = await newServer(t);
  for (let round = 0; round < 3; round += 1) {
    t.is((await ask(own, host, '/hostname')).status, 200);
    await bring(api, id, 'pause', 'paused');
    t.is((await ask(own, host, '/hostname')).status, 200);
  }
});

test.serial('a deleted sandbox answers like one that never was', async (t) => {
  const { api, own } = t.context;
  const { id, host } = await newServer(t);
  await bring(api, id, 'stop', 'stopped');
  await api.call('DELETE', sandboxPath(id));
  const [gone, never] = [await ask(own, host), await ask(own, hostOf(PORT, newSandboxId()))];
  t.is(gone.status, 401);
  t.deepEqual(gone.body, never.body);
});

for (const signal of ['SIGTERM', 'SIGKILL'] as const) {
  test.serial(`ports are reached again after an agent ended by ${signal}`, async (t) => {
    const { stack, own } = t.context;
    const { id, host } = await newServer(t);
    await stack.agent.stop(signal);
    await stack.startAgent();
    t.is((await ask(own, host, '/hostname')).status, 200);
    t.is(await statusOf(t, id), 'running');
    t.is(await entriesOf(t, id, 'pending_resume'), 0);
  });
}
