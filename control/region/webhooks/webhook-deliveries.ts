import { DelayedError, type Job, Queue, Worker } from 'bullmq';
import { queues } from '../../../shared/directory/keys.ts';
import type { QueuedDeliveries } from '../../../shared/directory/queued-deliveries.ts';
import { queueConnection } from '../../../shared/directory/redis.ts';
import type { Webhooks } from '../../../shared/directory/webhooks.ts';
import { toError } from '../../../shared/errors.ts';
import { LIMITS } from '../../../shared/limits.ts';
import { REGION_LIMITS } from '../limits.ts';
import type { Logger } from '../../../shared/log.ts';
import type { ReachableNetworks } from '../../../shared/reachable-networks.ts';
import type { ActivityEvent } from '../../../shared/schemas/activity.ts';
import { type Ring, unseal } from '../../../shared/secrets.ts';
import { settledWithin } from '../../../shared/settled-within.ts';
import type { RedisTarget } from '../../../shared/tls/redis-tls.ts';
import { sendWebhook } from './send-webhook.ts';

interface Delivery {
  readonly accountId: string;
  readonly webhookId: string;
  readonly event: ActivityEvent;
}

export interface WebhookDeliveriesOptions {
  readonly redis: RedisTarget;
  readonly region: string;
  readonly webhooks: Webhooks;
  readonly queued: QueuedDeliveries;
  readonly encryptionKeys: Ring<Buffer>;
  readonly networks: ReachableNetworks;
  readonly log: Logger;
}

/** The context to which the secret of a webhook is sealed. */
export const webhookSealContext = (accountId: string, id: string): string => `${accountId} ${id}`;

class NotDelivered extends Error {}

/**
 * Sends events to the webhooks of their accounts, from a queue that all control nodes of the region
 * share: an event that was queued outlives the node, and is tried again for about ten minutes.
 */
export class WebhookDeliveries {
  readonly #options: WebhookDeliveriesOptions;
  readonly #queue: Queue<Delivery>;
  readonly #worker: Worker<Delivery>;
  /** How many attempts are under way, by account. */
  readonly #underWay = new Map<string, number>();

  constructor(options: WebhookDeliveriesOptions) {
    this.#options = options;
    const { redis, region, log } = options;
    const name = queues.webhooks(region);
    const prefix = queues.prefix('webhooks');
    this.#queue = new Queue(name, {
      connection: queueConnection(redis, { blocking: false, prefix }),
      prefix,
    });
    this.#worker = new Worker(name, (job, token) => this.#deliver(job, token), {
      connection: queueConnection(redis, { blocking: true, prefix }),
      prefix,
      concurrency: REGION_LIMITS.webhooksAtOnceMax,
      removeOnComplete: { count: 0 },
      removeOnFail: { count: 0 },
    });
    const warn = (error: Error): void => log.warn({ err: error.message }, 'webhook:queueError');
    this.#queue.on('error', warn);
    this.#worker.on('error', warn);
    this.#worker.on('completed', (job) => this.#forget(job));
    this.#worker.on('failed', (job) => {
      if (job?.finishedOn !== undefined) this.#forget(job);
    });
  }

  /** Queues an event for those webhooks of its account that want it. Never throws. */
  async announce(event: ActivityEvent): Promise<void> {
    const { webhooks, log } = this.#options;
    const { accountId, eventId, eventType } = event;
    try {
      const wanting = (await webhooks.list(accountId)).filter(
        ({ eventTypes }) =>
          eventTypes === undefined || eventTypes.some((wanted) => wanted === eventType),
      );
      if (wanting.length === 0) return;
      await this.#enqueue(
        event,
        wanting.map(({ id }) => id),
      );
    } catch (error) {
      log.warn({ err: toError(error), accountId, eventId }, 'webhook:notQueued');
    }
  }

  /** Deliveries that take longer are sent again by another node. */
  async close(): Promise<void> {
    await settledWithin(this.#worker.close(), LIMITS.queueCloseMs);
    await this.#queue.close();
  }

  /** @throws Error when receivers that fail have filled the account's share of the queue */
  async #enqueue(event: ActivityEvent, webhookIds: readonly string[]): Promise<void> {
    const { queued } = this.#options;
    const { accountId, eventId } = event;
    const jobs = webhookIds.map((webhookId) => ({
      name: 'deliver',
      data: { accountId, webhookId, event },
      opts: {
        jobId: `${webhookId}.${eventId}`,
        attempts: REGION_LIMITS.webhookAttemptsMax,
        backoff: { type: 'exponential', delay: REGION_LIMITS.webhookRetryMsMin, jitter: 0.5 },
      },
    }));
    const jobIds = jobs.map(({ opts }) => opts.jobId);
    if (!(await queued.add(accountId, jobIds))) throw new Error('too many deliveries wait already');
    try {
      await this.#queue.addBulk(jobs);
    } catch (error) {
      await queued.remove(accountId, jobIds).catch(() => undefined);
      throw error;
    }
  }

  /** If this fails, the delivery counts until its time is over. */
  #forget({ id = '', data }: Job<Delivery>): void {
    this.#options.queued.remove(data.accountId, [id]).catch(() => undefined);
  }

  /** Waiting deliveries of an account come about 200 times a second, however many they are. */
  async #turnMs(accountId: string): Promise<number> {
    const count = await this.#options.queued.count(accountId);
    return (
      REGION_LIMITS.webhookTurnMs + Math.random() * count * REGION_LIMITS.webhookTurnMsPerDelivery
    );
  }

  async #deliver(job: Job<Delivery>, token?: string): Promise<void> {
    const { webhooks, encryptionKeys, networks } = this.#options;
    const { accountId, webhookId, event } = job.data;
    const record = await webhooks.get(accountId, webhookId);
    if (record === undefined) return; // Removed meanwhile.
    const busy = this.#underWay.get(accountId) ?? 0;
    if (busy >= REGION_LIMITS.webhooksAtOncePerAccountMax) {
      await job.moveToDelayed(Date.now() + Math.round(await this.#turnMs(accountId)), token);
      throw new DelayedError();
    }
    this.#underWay.set(accountId, busy + 1);
    try {
      const context = webhookSealContext(accountId, webhookId);
      const secret = unseal(encryptionKeys, record.sealedSecret, context);
      const begunAt = performance.now();
      const attempt = await sendWebhook({ url: record.url, secret }, event, networks);
      const number = job.attemptsMade + 1;
      const isDelivered = attempt.problem === undefined;
      await webhooks.noteDelivery(accountId, webhookId, {
        eventId: event.eventId,
        eventType: event.eventType,
        attempt: number,
        attemptedAt: new Date().toISOString(),
        isDelivered,
        ...attempt,
        durationMs: Math.round(performance.now() - begunAt),
        willRetry: !isDelivered && number < REGION_LIMITS.webhookAttemptsMax,
      });
      if (!isDelivered) throw new NotDelivered(attempt.problem);
    } finally {
      const left = (this.#underWay.get(accountId) ?? 1) - 1;
      if (left > 0) this.#underWay.set(accountId, left);
      else this.#underWay.delete(accountId);
    }
  }
}
