/* The queue of events for webhooks, with receivers that hang or are away. */
import { Queue } from 'bullmq';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { pino } from 'pino';
import {
  WebhookDeliveries,
  webhookSealContext,
} from '../../../../control/region/webhooks/webhook-deliveries.ts';
import { queues } from '../../../../shared/directory/keys.ts';
import { QueuedDeliveries } from '../../../../shared/directory/queued-deliveries.ts';
import { queueConnection } from '../../../../shared/directory/redis.ts';
import { ApiKeys } from '../../../../shared/directory/api-keys.ts';
import { Webhooks } from '../../../../shared/directory/webhooks.ts';
import { newEventId } from '../../../../shared/ids.ts';
import { DIRECTORY_LIMITS } from '../../../../shared/directory/limits.ts';
import { ReachableNetworks } from '../../../../shared/reachable-networks.ts';
import type { ActivityEvent } from '../../../../shared/schemas/activity.ts';
import { seal } from '../../../../shared/secrets.ts';
import type { RedisTarget } from '../../../../shared/tls/redis-tls.ts';
import { freePorts } from '../../../helpers/ports.ts';
import { redisTest } from '../../../helpers/redis-test.ts';
import { waitFor } from '../../../helpers/wait.ts';

const REGION = 'local-test';
const BOUNDS = { perAccount: 20, total: 100 };
const KEYS = [randomBytes(32)] as const;

interface Context {
  readonly webhooks: Webhooks;
  readonly queued: QueuedDeliveries;
  readonly target: RedisTarget;
}

const { serial: test } = redisTest<Context>((redis) => ({
  webhooks: new Webhooks(redis, new ApiKeys(redis)),
  queued: new QueuedDeliveries(redis, REGION, BOUNDS),
  target: {
    nodes: [{ host: '127.0.0.1', port: redis.options.port ?? 0 }],
    ...{ username: undefined, password: undefined, tls: undefined },
  },
}));

/** A receiver that answers the events of account `hangs` only once it is let go. */
async function openReceiver() {
  const received: string[] = [];
  const held: ServerResponse[] = [];
  let isLetGo = false;
  const receive = async (body: Promise<string>, response: ServerResponse): Promise<void> => {
    const { data } = JSON.parse(await body) as { data: { accountId: string } };
    received.push(data.accountId);
    if (data.accountId === 'hangs' && !isLetGo) held.push(response);
    else response.end();
  };
  const server = createServer((request, response) => {
    receive(text(request), response).catch(() => response.destroy());
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/`,
    received,
    letGo: () => {
      isLetGo = true;
      for (const response of held) response.end();
    },
    [Symbol.asyncDispose]: async () => {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}

interface Opened extends AsyncDisposable {
  readonly deliveries: WebhookDeliveries;
  readonly queue: Queue;
}

/** The deliveries of a control node, and a look at their queue. */
function openDeliveries({ webhooks, queued, target: redis }: Context): Opened {
  const prefix = queues.prefix('webhooks');
  const queue = new Queue(queues.webhooks(REGION), {
    connection: queueConnection(redis, { blocking: false, prefix }),
    prefix,
  });
  const deliveries = new WebhookDeliveries({
    ...{ redis, region: REGION, webhooks, queued, encryptionKeys: KEYS },
    ...{ networks: new ReachableNetworks(['127.0.0.1/32']), log: pino({ level: 'silent' }) },
  });
  const close = async (): Promise<void> => {
    await deliveries.close();
    await queue.close();
  };
  return { deliveries, queue, [Symbol.asyncDispose]: close };
}

async function addWebhook(webhooks: Webhooks, accountId: string, url: string): Promise<string> {
  const id = newEventId();
  const sealedSecret = seal(KEYS, 'whsec_c2VjcmV0', webhookSealContext(accountId, id));
  await webhooks.add(accountId, { id, url, createdAt: '', sealedSecret });
  return id;
}

const newEvent = (accountId: string): ActivityEvent => ({
  ...{ accountId, eventId: newEventId(), eventType: 'key.created', level: 'info' },
  ...{ createdAt: new Date().toISOString(), details: {} },
});

test('receivers that hang fill the share of their account, not the queue', async (t) => {
  const { webhooks, queued } = t.context;
  await using receiver = await openReceiver();
  await using opened = openDeliveries(t.context);
  const { deliveries, queue } = opened;
  for (let i = 0; i < DIRECTORY_LIMITS.webhooksPerAccountMax; i += 1) {
    await addWebhook(webhooks, 'hangs', receiver.url);
  }
  await addWebhook(webhooks, 'works', receiver.url);
  const announce = (accountId: string): Promise<void> => deliveries.announce(newEvent(accountId));
  const jobs = (): Promise<number> => queue.getJobCountByTypes('wait', 'active', 'delayed');
  const countOf = (accountId: string): number =>
    receiver.received.filter((id) => id === accountId).length;
  // Its connections are made in the background; until then events are not queued.
  await waitFor('the first event', async () => {
    await announce('works');
    return receiver.received.length > 0;
  });
  await waitFor('the queue to be empty', async () => (await jobs()) === 0);
  for (let i = 0; i < 5; i += 1) await announce('hangs');
  t.is(await jobs(), BOUNDS.perAccount);
  const before = countOf('works');
  await announce('works');
  await waitFor('the other event', () => Promise.resolve(countOf('works') > before));
  receiver.letGo();
  await waitFor('all deliveries to be over', async () => (await queued.count('hangs')) === 0);
  t.is(countOf('hangs'), BOUNDS.perAccount);
  await waitFor('the others, too', async () => (await queued.count('works')) === 0);
});

test('a delivery counts until its last attempt has failed', async (t) => {
  const { webhooks, queued } = t.context;
  await using opened = openDeliveries(t.context);
  const [port = 0] = await freePorts(1);
  for (const [accountId, attempts] of [
    ['retried', 2],
    ['given-up', 1],
  ] as const) {
    const webhookId = await addWebhook(webhooks, accountId, `http://127.0.0.1:${port}/`);
    const event = newEvent(accountId);
    const jobId = `${webhookId}.${event.eventId}`;
    await queued.add(accountId, [jobId]);
    const backoff = { type: 'fixed', delay: 3_600_000 };
    const options = { jobId, attempts, backoff };
    await waitFor('the job to be queued', () =>
      opened.queue.add('deliver', { accountId, webhookId, event }, options).catch(() => false),
    );
    await waitFor('the attempt', async () => {
      const [attempt] = await webhooks.deliveries(accountId, webhookId);
      return attempt?.isDelivered === false;
    });
  }
  await waitFor('the other to be over', async () => (await queued.count('given-up')) === 0);
  t.is(await queued.count('retried'), 1);
});
