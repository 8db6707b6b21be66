import { success } from '../../../shared/schemas/common.ts';
import {
  CreatedWebhook,
  CreateWebhook,
  WebhookDeliveries,
  WebhookList,
  WebhookPath,
} from '../../../shared/schemas/webhook.ts';
import { route } from '../../http/route.ts';
import { createWebhook, deleteWebhook, listDeliveries, listWebhooks } from './webhooks.ts';
import { DAY_MS } from '../../../shared/units.ts';
import { DIRECTORY_LIMITS } from '../../../shared/directory/limits.ts';

const tag = 'Webhooks';

const listWebhooksRoute = route({
  method: 'get',
  path: '/api/webhooks',
  operationId: 'listWebhooks',
  scope: 'admin',
  summary: 'List the webhooks of the account, oldest first',
  description: 'Their secrets are never shown again.',
  tag,
  replies: { 200: success(WebhookList) },
  errors: [],
  async handle({ deps, caller }) {
    return { status: 200, data: { webhooks: await listWebhooks(deps, caller.accountId) } };
  },
});

const createWebhookRoute = route({
  method: 'post',
  path: '/api/webhooks',
  operationId: 'createWebhook',
  scope: 'admin',
  event: 'webhook.created',
  summary: 'Have the events of the activity sent to a URL',
  description:
    'Each event is sent by POST, signed as Standard Webhooks says with the secret in this answer, and sent again until the receiver answers with 2xx, for about ten minutes. The webhook ends with the key that makes it.',
  tag,
  body: CreateWebhook,
  idempotent: true,
  replies: { 201: success(CreatedWebhook) },
  errors: [],
  async handle({ deps, caller, body, note }) {
    const created = await createWebhook(deps, caller, body);
    note({ webhookId: created.id });
    return { status: 201, data: created };
  },
});

const deleteWebhookRoute = route({
  method: 'delete',
  path: '/api/webhooks/{webhookId}',
  operationId: 'deleteWebhook',
  scope: 'admin',
  event: 'webhook.deleted',
  summary: 'Delete a webhook',
  description: 'What has not been sent to it is not sent any more.',
  tag,
  params: WebhookPath,
  replies: {},
  empty: [204],
  errors: ['not_found'],
  async handle({ deps, caller, params }) {
    await deleteWebhook(deps, caller.accountId, params.webhookId);
    return { status: 204 };
  },
});

const listWebhookDeliveries = route({
  method: 'get',
  path: '/api/webhooks/{webhookId}/deliveries',
  operationId: 'listWebhookDeliveries',
  scope: 'admin',
  summary: 'List the latest attempts to send events to a webhook, newest first',
  description: `Up to ${DIRECTORY_LIMITS.webhookDeliveriesKept} attempts of the last ${DIRECTORY_LIMITS.webhookDeliveriesKeptMs / DAY_MS} days.`,
  tag,
  params: WebhookPath,
  replies: { 200: success(WebhookDeliveries) },
  errors: ['not_found'],
  async handle({ deps, caller, params }) {
    const deliveries = await listDeliveries(deps, caller.accountId, params.webhookId);
    return { status: 200, data: { deliveries } };
  },
});

export const webhookRoutes = [
  listWebhooksRoute,
  createWebhookRoute,
  deleteWebhookRoute,
  listWebhookDeliveries,
];
