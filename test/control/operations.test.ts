import { keys } from '../../shared/directory/keys.ts';
import { sha256 } from '../../shared/secrets.ts';
import { ApiClient } from '../helpers/api.ts';
import { createDisk, exec } from '../helpers/disks.ts';
import type { Stack } from '../helpers/stack.ts';
import { stackTest } from '../helpers/stack-test.ts';
import { waitFor } from '../helpers/wait.ts';

type LogEvent = Record<string, unknown>;

const test = stackTest();

/** The log events of one request, once its own event is among them. */
async function eventsOf(stack: Stack, requestId: string): Promise<LogEvent[]> {
  const find = async (): Promise<LogEvent[]> =>
    (await stack.control.readLog())
      .split('\n')
      .filter((line) => line.includes(requestId))
      .map((line) => JSON.parse(line) as LogEvent);
  await waitFor('the log event', async () =>
    (await find()).some((event) => event['msg'] === 'request'),
  );
  return find();
}

const internalUrl = (stack: Stack): string =>
  `http://127.0.0.1:${stack.environment['CONTROL_INTERNAL_PORT']}`;

test('both ports report that the node is alive and ready', async (t) => {
  const { stack } = t.context;
  for (const base of [stack.baseUrl, internalUrl(stack)]) {
    const health = await fetch(`${base}/healthz`);
    t.is(health.status, 200);
    t.is(await health.text(), 'ok\n');
    const ready = await fetch(`${base}/readyz`);
    t.is(ready.status, 200);
    t.is(await ready.text(), 'ready\n');
  }
});

/** The line of the metrics that counts such requests. */
const count = (method: string, route: string, status: number): RegExp =>
  new RegExp(
    `berth_request_duration_seconds_count\\{[^}]*method="${method}",route="${route}",status="${status}"[^}]*\\} [1-9]`,
    'u',
  );

test('metrics are on the internal port only, and count requests by route', async (t) => {
  const { api, stack } = t.context;
  await createDisk(api);
  await api.call('GET', '/api/disks/x');
  t.is((await fetch(`${stack.baseUrl}/metrics`)).status, 404);
  const response = await fetch(`${internalUrl(stack)}/metrics`);
  t.is(response.status, 200);
  t.regex(response.headers.get('content-type') ?? '', /^text\/plain; version=/u);
  const text = await response.text();
  t.regex(text, count('POST', '/api/disks', 201));
  t.regex(text, count('GET', '/api/disks/\\{id\\}', 400));
  t.regex(text, /^process_cpu_seconds_total/mu);
  t.regex(text, /^nodejs_eventloop_lag_seconds/mu);
});

test('the internal port serves no endpoint of the API', async (t) => {
  const { api, stack } = t.context;
  const headers = { authorization: api.key };
  t.is((await fetch(`${internalUrl(stack)}/api/disks`, { headers })).status, 404);
});

const logged = test.macro({
  async exec(t, [method, path, body]: [string, string, unknown?], expected: LogEvent) {
    const { api, stack } = t.context;
    const requestId = `log-${Math.random().toString(36).slice(2)}`;
    const { id } = await createDisk(api);
    await api.call(method, path.replace('DISK', id), body, { 'x-request-id': requestId });
    const events = await eventsOf(stack, requestId);
    t.is(events.length, 1);
    const [event = {}] = events;
    t.like(event, { level: 'info', msg: 'request', service: 'control', method, ...expected });
    t.is(typeof event['durationMs'], 'number');
    t.regex(String(event['time']), /^\d{4}-\d\d-\d\dT/u);
  },
  title: (given) => `a request is logged once: ${given}`,
});

test('a success', logged, ['GET', '/api/disks/DISK'], { route: '/api/disks/{id}', status: 200 });
test('a refusal', logged, ['GET', '/api/disks/x'], {
  route: '/api/disks/{id}',
  status: 400,
  code: 'bad_request',
});
test('an unknown path', logged, ['GET', '/nowhere'], { route: 'none', status: 404 });
test('a command', logged, ['POST', '/api/disks/DISK/exec', { command: 'exit 3' }], {
  route: '/api/disks/{id}/exec',
  status: 200,
  exitCode: 3,
});

test('the log names the account of a request', async (t) => {
  const { stack } = t.context;
  const api = await stack.newClient();
  await api.call('GET', '/api/disks', undefined, { 'x-request-id': 'whose' });
  const [event = {}] = await eventsOf(stack, 'whose');
  const redis = await stack.redisClient();
  t.is(event['accountId'], await redis.hget(keys.apiKey(sha256(api.key)), 'accountId'));
});

test("an agent's log knows the request by the same id", async (t) => {
  const { api, stack } = t.context;
  const { id } = await createDisk(api);
  const body = { command: 'true' };
  await api.call('POST', `/api/disks/${id}/exec`, body, { 'x-request-id': 'follow-me' });
  await waitFor('the agent to log the job', async () =>
    (await stack.agent.readLog()).includes('"requestId":"follow-me"'),
  );
  t.pass();
});

test('no log holds a key, a token or a command', async (t) => {
  const { stack } = t.context;
  const api = await stack.newClient();
  const disk = await createDisk(api);
  const key = await api.data<{ token: string }>('POST', '/api/tokens', { name: 'n' });
  const user = await api.data<{ token: string }>('POST', `/api/disks/${disk.id}/users`, {
    type: 'token',
    nickname: 'n',
    principal: 'a-token-of-the-callers-abcd',
    tokenSuffix: 'abcd',
  });
  await exec(api, disk.id, 'echo marker-of-the-command');
  const anyone = new ApiClient(stack.baseUrl, '');
  for (const authorization of ['key-a-wrong-key-of-somebody', 'dt-a-disk-token-of-somebody']) {
    await anyone.call('GET', '/api/disks', undefined, { authorization });
  }
  await api.call('GET', '/api/disks?cursor=marker-of-the-query');
  await api.call('POST', '/api/disks', '{"name": "marker-of-the-body"');
  await api.call('GET', '/api/disks', undefined, { 'x-request-id': 'the-last' });
  await eventsOf(stack, 'the-last');
  await waitFor('the job in the log', async () =>
    (await stack.agent.readLog()).includes('"kind":"exec.run"'),
  );
  const logs = [await stack.control.readLog(), await stack.agent.readLog()].join('\n');
  t.true(logs.includes(disk.id));
  for (const secret of [
    api.key,
    key.token,
    user.token,
    disk.authorizedUsers[0]?.token ?? 'none',
    'somebody',
    'marker-of-',
    stack.environment['CLUSTER_SECRET'] ?? 'none',
    stack.environment['ENCRYPTION_KEY'] ?? 'none',
  ]) {
    t.false(logs.includes(secret), secret);
  }
});

test('only the log has the details of an unexpected failure', async (t) => {
  const { api, stack } = t.context;
  const { id } = await createDisk(api);
  const redis = await stack.redisClient();
  const [key = ''] = await redis.keys(`*disk:${id}`);
  await redis.hset(key, 'allowedIps', '{broken');
  const headers = { 'x-request-id': 'broken-record' };
  const reply = await api.call('GET', `/api/disks/${id}`, undefined, headers);
  t.is(reply.status, 500);
  t.deepEqual<unknown, unknown>(reply.body, {
    success: false,
    error: 'internal error',
    code: 'internal_server_error',
  });
  const events = await eventsOf(stack, 'broken-record');
  t.deepEqual(
    events.map(({ msg }) => msg),
    ['failure', 'request'],
  );
  t.regex(JSON.stringify(events[0]), /SyntaxError/u);
  await redis.hset(key, 'allowedIps', '[]');
});
