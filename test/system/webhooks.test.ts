/*
 * Events reach receivers that answer, signed; receivers that fail, hang, redirect or are private.
 */
import { once } from 'node:events';
import { createServer, type IncomingHttpHeaders, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { Webhook as Verifier } from 'standardwebhooks';
import type { EndedWithKey } from '../../shared/schemas/api-key.ts';
import type { ActivityEvent } from '../../shared/schemas/activity.ts';
import type { Webhook, WebhookDelivery } from '../../shared/schemas/webhook.ts';
import type { ApiClient } from '../helpers/api.ts';
import { newName } from '../helpers/disks.ts';
import { dumpRedis } from '../helpers/redis-contents.ts';
import { stackTest } from '../helpers/stack-test.ts';
import { waitFor } from '../helpers/wait.ts';

const test = stackTest({ WEBHOOK_REACHABLE_NETWORKS: '127.0.0.1/32' });

interface Received {
  readonly headers: IncomingHttpHeaders;
  readonly body: string;
}

/** A receiver on loopback that keeps what it gets. */
async function openReceiver(answer: (response: ServerResponse, count: number) => void) {
  const received: Received[] = [];
  const server = createServer((request, response) => {
    text(request).then(
      (body) => {
        received.push({ headers: request.headers, body });
        answer(response, received.length);
      },
      () => undefined,
    );
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const close = async (): Promise<void> => {
    server.closeAllConnections();
    await new Promise((resolve) => {
      server.close(resolve);
    });
  };
  return { url: `http://127.0.0.1:${port}/hook`, received, [Symbol.asyncDispose]: close };
}

const create = (api: ApiClient, body: object): Promise<Webhook & { secret: string }> =>
  api.data('POST', '/api/webhooks', body);

const makeEvent = (api: ApiClient): Promise<{ id: string }> =>
  api.data('POST', '/api/tokens', { name: newName(), scopes: ['read'] });

const deliveriesOf = async (api: ApiClient, id: string): Promise<WebhookDelivery[]> => {
  const path = `/api/webhooks/${id}/deliveries`;
  return (await api.data<{ deliveries: WebhookDelivery[] }>('GET', path)).deliveries;
};

const onlyKeys = { eventTypes: ['key.created'] };

test('an event is sent once, signed, and as the activity has it', async (t) => {
  const api = await t.context.stack.newClient();
  await using receiver = await openReceiver((response) => response.writeHead(204).end());
  const { secret, id } = await create(api, { url: receiver.url, ...onlyKeys });
  await makeEvent(api);
  const [{ headers, body }] = await waitFor('the event', () =>
    Promise.resolve(receiver.received.length > 0 ? (receiver.received as [Received]) : undefined),
  );
  const { type, data } = new Verifier(secret).verify(body, headers as Record<string, string>) as {
    type: string;
    data: ActivityEvent;
  };
  t.is(type, 'key.created');
  const { body: listed } = await api.call<{ data: ActivityEvent[] }>(
    'GET',
    '/api/activity?eventType=key.created',
  );
  t.deepEqual(listed.data, [data]);
  t.is(headers['webhook-id'], data.eventId);
  t.throws(() => new Verifier(secret).verify(`${body} `, headers as Record<string, string>));
  const given = headers as Record<string, string>;
  const anHourAgo = String(Math.floor(Date.now() / 1000) - 3600);
  const late = { ...given, 'webhook-timestamp': anHourAgo };
  t.throws(() => new Verifier(secret).verify(body, late));
  const [delivery, ...others] = await waitFor('the log', async () => {
    const deliveries = await deliveriesOf(api, id);
    return deliveries.length > 0 ? deliveries : undefined;
  });
  t.like(delivery, { eventId: data.eventId, attempt: 1, isDelivered: true, status: 204 });
  t.deepEqual(others, []);
  t.is(receiver.received.length, 1);
});

test('a receiver that fails or redirects gets the event again, with the same id', async (t) => {
  const api = await t.context.stack.newClient();
  await using elsewhere = await openReceiver((response) => response.end());
  await using receiver = await openReceiver((response, count) => {
    if (count === 1) response.writeHead(307, { location: elsewhere.url }).end();
    else response.writeHead(200).end();
  });
  const { id, secret } = await create(api, { url: receiver.url, ...onlyKeys });
  await makeEvent(api);
  const received = await waitFor('the second attempt', () =>
    Promise.resolve(receiver.received.length === 2 ? receiver.received : undefined),
  );
  for (const { headers, body } of received) {
    t.notThrows(() => new Verifier(secret).verify(body, headers as Record<string, string>));
  }
  t.is(new Set(received.map(({ headers }) => headers['webhook-id'])).size, 1);
  t.deepEqual(elsewhere.received, [], 'redirects are not followed');
  const [last, first] = await waitFor('the log', async () => {
    const deliveries = await deliveriesOf(api, id);
    return deliveries.length === 2 ? deliveries : undefined;
  });
  t.like(first, { attempt: 1, isDelivered: false, status: 307, willRetry: true });
  t.like(last, { attempt: 2, isDelivered: true, status: 200, willRetry: false });
});

test('a receiver that hangs is given up, and holds up nobody else', async (t) => {
  const api = await t.context.stack.newClient();
  await using hanging = await openReceiver(() => undefined);
  await using quick = await openReceiver((response) => response.end());
  const { id } = await create(api, { url: hanging.url, ...onlyKeys });
  await create(api, { url: quick.url, ...onlyKeys });
  await makeEvent(api);
  await waitFor('the other receiver', () => Promise.resolve(quick.received.length === 1));
  const [attempt] = await waitFor('the log', async () => {
    const deliveries = await deliveriesOf(api, id);
    return deliveries.length > 0 ? deliveries : undefined;
  });
  t.like(attempt, { attempt: 1, isDelivered: false, problem: 'no answer in time' });
  t.is((await api.call('DELETE', `/api/webhooks/${id}`)).status, 204);
  t.is((await api.call('GET', `/api/webhooks/${id}/deliveries`)).status, 404);
});

for (const url of [
  'https://10.0.0.1/',
  'https://127.0.0.2/hook',
  'https://[::1]/',
  'https://169.254.169.254/latest/meta-data',
  'https://[::ffff:10.0.0.1]/',
  'https://0x7f.2/',
  'http://example.com/hook',
  'https://user:password@example.com/',
]) {
  test(`a webhook is refused: ${url}`, async (t) => {
    const reply = await t.context.api.call('POST', '/api/webhooks', { url });
    t.is(reply.status, 400, JSON.stringify(reply.body));
    t.regex(reply.body.error, /^url /u);
  });
}

test('an address is judged again for each attempt', async (t) => {
  const api = await t.context.stack.newClient();
  const redis = await t.context.stack.redisClient();
  const { id } = await create(api, { url: 'https://hooks.example.com/', ...onlyKeys });
  // The state after the operator had allowed it. Names: test/shared/reachable-lookup.test.ts.
  for (const key of await redis.keys('*:webhooks')) {
    const record = await redis.hget(key, id);
    if (record === null) continue;
    await redis.hset(key, id, record.replace('hooks.example.com', '127.0.0.9'));
  }
  await makeEvent(api);
  const [attempt] = await waitFor('the log', async () => {
    const deliveries = await deliveriesOf(api, id);
    return deliveries.length > 0 ? deliveries : undefined;
  });
  t.like(attempt, { isDelivered: false, problem: 'url is of a private address' });
});

test('only what is asked for is sent, and secrets are nowhere', async (t) => {
  const { stack } = t.context;
  const api = await stack.newClient();
  await using receiver = await openReceiver((response) => response.end());
  const created = await create(api, { url: receiver.url, eventTypes: ['key.deleted'] });
  const { id } = await makeEvent(api);
  await api.data('DELETE', `/api/tokens/${id}`);
  await waitFor('the event', () => Promise.resolve(receiver.received.length > 0));
  t.deepEqual(
    receiver.received.map(({ body }) => (JSON.parse(body) as { type: string }).type),
    ['key.deleted'],
  );
  const { webhooks } = await api.data<{ webhooks: Webhook[] }>('GET', '/api/webhooks');
  const { secret, ...shown } = created;
  t.deepEqual(webhooks, [shown]);
  const stored = await dumpRedis(await stack.redisClient());
  t.false(stored.includes(secret.slice('whsec_'.length)));
  const theirs = await stack.newClient();
  t.is((await theirs.call('DELETE', `/api/webhooks/${shown.id}`)).status, 404);
});

test('a webhook ends with its key, by the clock or by deletion', async (t) => {
  const api = await t.context.stack.newClient();
  await using receiver = await openReceiver((response) => response.writeHead(204).end());
  const newKey = async (more: object) => {
    const body = { name: newName(), ...more };
    const { id, token } = await api.data<{ id: string; token: string }>(
      'POST',
      '/api/tokens',
      body,
    );
    return { id, api: api.withKey(token) };
  };
  const brief = await newKey({ expiresAt: new Date(Date.now() + 1500).toISOString() });
  const deleted = await newKey({});
  await create(brief.api, { url: `${receiver.url}/brief`, ...onlyKeys });
  const { id } = await create(deleted.api, { url: `${receiver.url}/deleted`, ...onlyKeys });
  await create(api, { url: `${receiver.url}/lasting`, ...onlyKeys });
  await makeEvent(api);
  await waitFor('the event', async () => receiver.received.length === 3);
  const { ended } = await api.data<{ ended: EndedWithKey }>('DELETE', `/api/tokens/${deleted.id}`);
  t.deepEqual(ended, { webhooks: [{ id, url: `${receiver.url}/deleted` }], ports: [] });
  const urls = async () => {
    const { webhooks } = await api.data<{ webhooks: Webhook[] }>('GET', '/api/webhooks');
    return webhooks.map(({ url }) => url.split('/').at(-1));
  };
  await waitFor('the end of a key', async () => (await urls()).length === 1);
  t.deepEqual(await urls(), ['lasting']);
  await makeEvent(api);
  await waitFor('the second event', async () => receiver.received.length === 4);
  t.is((await api.call('GET', `/api/webhooks/${id}/deliveries`)).status, 404);
});
