import { randomBytes } from 'node:crypto';
import type { Caller } from '../../../shared/directory/api-keys.ts';
import type { WebhookRecord } from '../../../shared/directory/webhooks.ts';
import { AppError } from '../../../shared/errors.ts';
import { newEventId } from '../../../shared/ids.ts';
import { DIRECTORY_LIMITS } from '../../../shared/directory/limits.ts';
import { ReachableNetworks } from '../../../shared/reachable-networks.ts';
import type { CreateWebhook, Webhook, WebhookDelivery } from '../../../shared/schemas/webhook.ts';
import { seal } from '../../../shared/secrets.ts';
import { whyNoWebhook } from '../../region/webhooks/send-webhook.ts';
import { webhookSealContext } from '../../region/webhooks/webhook-deliveries.ts';
import type { Deps } from '../../region/deps.ts';

const SECRET_BYTES = 32;

const present = ({ sealedSecret: _, keyId: __, ...webhook }: WebhookRecord): Webhook => webhook;

const missing = (id: string): AppError => new AppError('not_found', `webhook ${id} not found`);

/** @throws AppError `bad_request` for a URL that is not reachable, or too many webhooks */
export async function createWebhook(
  { directory, config }: Deps,
  { accountId, keyId }: Caller,
  { url, eventTypes }: CreateWebhook,
): Promise<Webhook & { readonly secret: string }> {
  const refusal = whyNoWebhook(url, new ReachableNetworks(config.webhookNetworks));
  if (refusal !== undefined) throw new AppError('bad_request', refusal);
  const id = newEventId();
  const secret = `whsec_${randomBytes(SECRET_BYTES).toString('base64')}`;
  const context = webhookSealContext(accountId, id);
  const record: WebhookRecord = {
    id,
    url,
    keyId,
    ...(eventTypes === undefined ? {} : { eventTypes }),
    createdAt: new Date().toISOString(),
    sealedSecret: seal(config.cluster.encryptionKeys, secret, context),
  };
  if (!(await directory.webhooks.add(accountId, record))) {
    const message = `the account has ${DIRECTORY_LIMITS.webhooksPerAccountMax} webhooks; delete one first`;
    throw new AppError('bad_request', message);
  }
  return { ...present(record), secret };
}

export async function listWebhooks({ directory }: Deps, accountId: string): Promise<Webhook[]> {
  return (await directory.webhooks.list(accountId)).map(present);
}

/** Deletes a webhook and drops its pending deliveries. @throws AppError `not_found` */
export async function deleteWebhook({ directory }: Deps, accountId: string, id: string) {
  if (!(await directory.webhooks.remove(accountId, id))) throw missing(id);
}

/** @throws AppError `not_found` */
export async function listDeliveries(
  { directory }: Deps,
  accountId: string,
  id: string,
): Promise<WebhookDelivery[]> {
  if ((await directory.webhooks.get(accountId, id)) === undefined) throw missing(id);
  return directory.webhooks.deliveries(accountId, id);
}
