/* The queue of events for webhooks, with receivers that hang. */
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
} from '../../../control/webhooks/webhook-deliveries.ts';
import { queues } from '../../../shared/directory/keys.ts';
import { QueuedDeliveries } from '../../../shared/directory/queued-deliveries.ts';
import { queueConnection } from '../../../shared/directory/redis.ts';
import { Webhooks } from '../../../shared/directory/webhooks.ts';
import { newEventId } from '../../../shared/ids.ts';
import { LIMITS } from '../../../shared/limits.ts';
import { ReachableNetworks } from '../../../shared/reachable-networks.ts';
import { seal } from '../../../shared/secrets.ts';
import { redisTest } from '../../helpers/redis-test.ts';
import { waitFor } from '../../helpers/wait.ts';

const REGION = 'local-test';
const BOUNDS = { perAccount: 20, total: 100 };
const KEYS = [randomBytes(32)] as const;

const test = redisTest((redis) => ({
  webhooks: new Webhooks(redis),
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

test('receivers that hang fill the share of their account, not the queue', async (t) => {
  const { webhooks, queued, target: redis } = t.context;
  await using receiver = await openReceiver();
  const { url } = receiver;
  for (const [accountId, count] of [
    ['hangs', LIMITS.webhooksPerAccountMax],
    ['works', 1],
  ] as const) {
    for (let i = 0; i < count; i += 1) {
      const id = newEventId();
      const sealedSecret = seal(KEYS, 'whsec_c2VjcmV0', webhookSealContext(accountId, id));
      await webhooks.add(accountId, { id, url, createdAt: '', sealedSecret });
    }
  }
  const prefix = queues.prefix('webhooks');
  const queue = new Queue(queues.webhooks(REGION), {
    connection: queueConnection(redis, { blocking: false, prefix }),
    prefix,
  });
  const jobs = (): Promise<number> => queue.getJobCountByTypes('wait', 'active', 'delayed');
  const deliveries = new WebhookDeliveries({
    ...{ redis, region: REGION, webhooks, queued, encryptionKeys: KEYS },
    ...{ networks: new ReachableNetworks(['127.0.0.1/32']), log: pino({ level: 'silent' }) },
  });
  const announce = (accountId: string): Promise<void> =>
    deliveries.announce({
      ...{ accountId, eventId: newEventId(), eventType: 'key.created', level: 'info' },
      ...{ createdAt: new Date().toISOString(), details: {} },
    });
  try {
    // Its connections are made in the background; until then events are not queued.
    await waitFor('the first event', async () => {
      await announce('works');
      return receiver.received.length > 0;
    });
    await waitFor('the queue to be empty', async () => (await jobs()) === 0);
    for (let i = 0; i < 5; i += 1) await announce('hangs');
    t.is(await jobs(), BOUNDS.perAccount);
    const before = receiver.received.filter((id) => id === 'works').length;
    await announce('works');
    await waitFor('the event of the other account', () =>
      Promise.resolve(receiver.received.filter((id) => id === 'works').length > before),
    );
    receiver.letGo();
    await waitFor('all deliveries to be over', async () => (await queued.count('hangs')) === 0);
    t.is(receiver.received.filter((id) => id === 'hangs').length, BOUNDS.perAccount);
    t.is(await queued.count('works'), 0);
  } finally {
    await deliveries.close();
    await queue.close();
  }
});
