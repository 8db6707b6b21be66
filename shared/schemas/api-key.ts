import Type from 'typebox';
import { accountScopes, type KeyScope, keyScopes } from '../key-scopes.ts';
import { Message, timestamp } from './common.ts';
import { uuid } from './sandbox.ts';

const SHA256 = '9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08';

const scopes = <S extends KeyScope>(known: readonly S[], description: string) =>
  Type.Array(
    Type.Enum([...known], {
      description:
        '`read`: whatever changes nothing; every key may. `disk`: disks and what is on them. `sandbox`: sandboxes, their snapshots and images. `admin`: everything of the account. `operator`: hosts; only the operator makes such keys.',
    }),
    { minItems: 1, maxItems: known.length, description, examples: [['read']] },
  );

export const CreateApiKey = Type.Object(
  {
    name: Type.String({
      minLength: 1,
      maxLength: 100,
      description: 'For people.',
      examples: ['ci'],
    }),
    description: Type.Optional(
      Type.String({ maxLength: 500, description: 'For people.', examples: ['nightly builds'] }),
    ),
    scopes: Type.Optional(
      scopes(accountScopes, 'What the key may do; everything when this is left out.'),
    ),
    expiresAt: Type.Optional(
      timestamp(
        'When the key stops working; never when this is left out. A key that ends by itself makes none that lasts longer.',
      ),
    ),
  },
  { title: 'CreateApiKey' },
);
export type CreateApiKey = Type.Static<typeof CreateApiKey>;

/** An API key as lists show it: never the key itself (docs/api.md, API keys). */
export const ApiKey = Type.Object(
  {
    id: Type.String({ description: 'SHA-256 of the key, in hex.', examples: [SHA256] }),
    name: Type.String({ description: 'For people.', examples: ['ci'] }),
    description: Type.Optional(
      Type.String({ description: 'For people.', examples: ['nightly builds'] }),
    ),
    tokenSuffix: Type.String({
      description: 'The last characters of the key.',
      examples: ['9f3c'],
    }),
    scopes: scopes(keyScopes, 'What the key may do.'),
    createdAt: timestamp('When the key was created.'),
    expiresAt: Type.Optional(timestamp('When it stops working; absent: never.')),
    lastUsedAt: Type.Optional(timestamp('When it was last used, to the minute.')),
  },
  { title: 'ApiKey' },
);
export type ApiKey = Type.Static<typeof ApiKey>;

export const CreatedApiKey = Type.Interface(
  [ApiKey],
  {
    token: Type.String({
      description: 'The whole key; only in this answer.',
      examples: ['key-0a1b2c3d4e5f60718293a4b5c6d7e8f9'],
    }),
  },
  { title: 'CreatedApiKey' },
);

/** Answer to the deletion of a key. */
export const EndedWithKey = Type.Object(
  {
    webhooks: Type.Array(
      Type.Object({
        id: Type.String({
          description: 'Id of the webhook.',
          examples: ['0199a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b'],
        }),
        url: Type.String({
          description: 'Where events were sent.',
          examples: ['https://hooks.example.com/berth'],
        }),
      }),
      { description: 'Webhooks that the key made.' },
    ),
    ports: Type.Array(
      Type.Object({
        sandbox_id: uuid('The sandbox.'),
        port: Type.Integer({ description: 'Its port.', examples: [8080] }),
      }),
      { description: 'Ports that no other key made public; the first 1,000.' },
    ),
  },
  { title: 'EndedWithKey' },
);
export type EndedWithKey = Type.Static<typeof EndedWithKey>;

export const DeletedApiKey = Type.Interface([Message], { ended: EndedWithKey });

export const ApiKeyList = Type.Object({
  tokens: Type.Array(ApiKey, { description: 'Oldest first.' }),
});

/** Ids of any form are accepted: what cannot be an id is not found, like the id of no key. */
export const ApiKeyPath = Type.Object({
  id: Type.String({ description: 'Id of the key.', examples: [SHA256] }),
});
