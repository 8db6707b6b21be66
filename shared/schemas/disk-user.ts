import Type from 'typebox';
import { taggedUnion } from '../validate.ts';
import { Timestamp } from './common.ts';

/** The spellings of the role kind: `cloudsts` is the specification's, `awssts` the client's. */
export const stsTypes = ['cloudsts', 'awssts'] as const;

const TokenUserInput = Type.Object({
  type: Type.Literal('token'),
  nickname: Type.String({ minLength: 1, maxLength: 255 }),
  principal: Type.Optional(
    Type.String({
      minLength: 16,
      maxLength: 2048,
      deprecated: true,
      description: 'A token chosen by the caller; leave it out and one is made.',
    }),
  ),
  tokenSuffix: Type.Optional(Type.String({ minLength: 4, maxLength: 4, deprecated: true })),
});

const StsUserInput = Type.Object({
  type: Type.Enum([...stsTypes]),
  principal: Type.String({ minLength: 1, maxLength: 2048 }),
});

/** Body of add-disk-user, and item of the deprecated `authMethods` (docs/api.md, Disk users). */
export const DiskUserInput = taggedUnion('type', [TokenUserInput, StsUserInput]);
export type DiskUserInput = Type.Static<typeof DiskUserInput>;

export const AuthorizedUser = Type.Object({
  type: Type.Enum(['token', ...stsTypes]),
  principal: Type.Optional(Type.String()),
  nickname: Type.Optional(Type.String()),
  tokenSuffix: Type.Optional(Type.String({ minLength: 4, maxLength: 4 })),
  token: Type.Optional(
    Type.String({ description: 'The whole disk token; only in the answer that creates it.' }),
  ),
  identifier: Type.String({ description: 'Removes the user.' }),
  createdAt: Timestamp,
});
export type AuthorizedUser = Type.Static<typeof AuthorizedUser>;

export const DiskUserPath = Type.Object({
  id: Type.String({ pattern: '^dsk-[0-9a-f]{16}$' }),
  userType: Type.Enum(['token', ...stsTypes]),
});

export const RemoveUserQuery = Type.Object({
  identifier: Type.Optional(Type.String({ minLength: 1, maxLength: 2048 })),
  principal: Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: 2048,
      deprecated: true,
      description: 'Use identifier.',
    }),
  ),
});
