import Type from 'typebox';
import { webhookEventTypes } from '../activity-types.ts';
import { timestamp } from './common.ts';

const URL_EXAMPLE = 'https://hooks.example.com/berth';

const eventTypes = Type.Array(
  Type.Enum(webhookEventTypes, { description: 'A type of events, as in the activity.' }),
  {
    minItems: 1,
    maxItems: webhookEventTypes.length,
    description: 'The types of events that are sent; all of them when this is left out.',
    examples: [['sandbox.created']],
  },
);

const url = (description: string) =>
  Type.String({
    minLength: 8,
    maxLength: 2048,
    pattern: '^https?://',
    description,
    examples: [URL_EXAMPLE],
  });

export const CreateWebhook = Type.Object(
  {
    url: url('Where events are sent: an https:// URL of a public address, without credentials.'),
    eventTypes: Type.Optional(eventTypes),
  },
  { title: 'CreateWebhook' },
);
export type CreateWebhook = Type.Static<typeof CreateWebhook>;

const WEBHOOK_ID = {
  description: 'Id of the webhook.',
  examples: ['0199a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b'],
};

export const Webhook = Type.Object(
  {
    id: Type.String(WEBHOOK_ID),
    url: url('Where events are sent.'),
    eventTypes: Type.Optional(eventTypes),
    createdAt: timestamp('When the webhook was created.'),
  },
  { title: 'Webhook' },
);
export type Webhook = Type.Static<typeof Webhook>;

export const CreatedWebhook = Type.Interface(
  [Webhook],
  {
    secret: Type.String({
      description: 'Signs what is sent, as Standard Webhooks says; only in this answer.',
      examples: ['whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw'],
    }),
  },
  { title: 'CreatedWebhook' },
);

export const WebhookList = Type.Object({
  webhooks: Type.Array(Webhook, { description: 'Oldest first.' }),
});

/** Ids of any form are accepted: what cannot be an id is not found. */
export const WebhookPath = Type.Object({ webhookId: Type.String(WEBHOOK_ID) });

export const WebhookDelivery = Type.Object(
  {
    eventId: Type.String({ ...WEBHOOK_ID, description: 'The event, and `webhook-id`.' }),
    eventType: Type.String({ description: 'Its type.', examples: ['sandbox.created'] }),
    attempt: Type.Integer({ description: 'Counts from 1.', examples: [1] }),
    attemptedAt: timestamp('When the attempt ended.'),
    isDelivered: Type.Boolean({ description: 'The receiver answered with 2xx.' }),
    status: Type.Optional(
      Type.Integer({ description: 'What it answered, if it did.', examples: [204] }),
    ),
    problem: Type.Optional(
      Type.String({ description: 'Why it was not delivered.', examples: ['no answer in time'] }),
    ),
    durationMs: Type.Integer({ description: 'How long the attempt took.', examples: [87] }),
    willRetry: Type.Boolean({ description: 'Another attempt follows.' }),
  },
  { title: 'WebhookDelivery' },
);
export type WebhookDelivery = Type.Static<typeof WebhookDelivery>;

export const WebhookDeliveries = Type.Object({
  deliveries: Type.Array(WebhookDelivery, { description: 'The latest attempts, newest first.' }),
});
