import type { CallOptions, CreatingCallOptions, Http } from './http.ts';
import type { CreatedWebhook, CreateWebhook, Webhook, WebhookDelivery } from './types.ts';

const READ = { retry: 'repeatable' } as const;

/** URLs to which the events of the account are sent. */
export class Webhooks {
  readonly #http: Http;

  /** @internal */
  constructor(http: Http) {
    this.#http = http;
  }

  /** @returns the webhook with the secret that signs its events, which is shown only here */
  async create(webhook: CreateWebhook, options: CreatingCallOptions = {}): Promise<CreatedWebhook> {
    const { data } = await this.#http.call({ retry: 'keyed' }, options, (client, init) =>
      client.POST('/api/webhooks', { ...init, body: webhook }),
    );
    return data;
  }

  /** Oldest first, without their secrets. */
  async list(options: CallOptions = {}): Promise<readonly Webhook[]> {
    const { data } = await this.#http.call(READ, options, (client, init) =>
      client.GET('/api/webhooks', { ...init }),
    );
    return data.webhooks;
  }

  /** The latest attempts to send events to a webhook, newest first. @throws NotFoundError */
  async deliveries(
    webhookId: string,
    options: CallOptions = {},
  ): Promise<readonly WebhookDelivery[]> {
    const params = { path: { webhookId } };
    const { data } = await this.#http.call(READ, options, (client, init) =>
      client.GET('/api/webhooks/{webhookId}/deliveries', { ...init, params }),
    );
    return data.deliveries;
  }

  /** Deletes a webhook and drops its pending deliveries. */
  async delete(webhookId: string, options: CallOptions = {}): Promise<void> {
    const params = { path: { webhookId } };
    await this.#http.call({ ...READ, isDeletion: true }, options, (client, init) =>
      client.DELETE('/api/webhooks/{webhookId}', { ...init, params }),
    );
  }
}
