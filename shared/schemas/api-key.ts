import Type from 'typebox';
import { Timestamp } from './common.ts';

export const CreateApiKey = Type.Object({
  name: Type.String({ minLength: 1, maxLength: 100 }),
  description: Type.Optional(Type.String({ maxLength: 500 })),
});
export type CreateApiKey = Type.Static<typeof CreateApiKey>;

/** An API key as lists show it: never the key itself (docs/api.md, API keys). */
export const ApiKey = Type.Object({
  id: Type.String({ description: 'SHA-256 of the key, in hex.' }),
  name: Type.String(),
  description: Type.Optional(Type.String()),
  tokenSuffix: Type.String(),
  createdAt: Timestamp,
  lastUsedAt: Type.Optional(Timestamp),
});
export type ApiKey = Type.Static<typeof ApiKey>;

export const CreatedApiKey = Type.Interface([ApiKey], {
  token: Type.String({ description: 'The whole key; only in this answer.' }),
});

export const ApiKeyList = Type.Object({ tokens: Type.Array(ApiKey) });

/** Of any form: what cannot be an id is not found, like the id of no key. */
export const ApiKeyPath = Type.Object({ id: Type.String() });
