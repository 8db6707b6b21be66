import Type from 'typebox';
import { taggedUnion } from '../validate.ts';
import { SCHEMA_LIMITS } from './limits.ts';
import { HOUR_MS } from '../units.ts';
import { diskId, timestamp, ttl } from './common.ts';

/** The spellings of the role kind: `cloudsts` is the specification's, `awssts` the client's. */
export const stsTypes = ['cloudsts', 'awssts'] as const;

const END = {
  ttl: Type.Optional(
    ttl(
      'How long its credentials work: a duration such as `90s`, `4m` or `1h30m`, more than 0 and ' +
        `at most ${SCHEMA_LIMITS.credentialTtlMsMax / HOUR_MS}h. Not together with expiresAt.`,
      '24h',
    ),
  ),
  expiresAt: Type.Optional(
    timestamp('When its credentials stop working; without it and ttl they do not end.'),
  ),
};
/** Refused rather than ignored: the caller would hand out more than it means to. */
const RESTRICTIONS = {
  oneUse: Type.Optional(Type.Literal(false, { description: 'No user is of one use.' })),
  readOnly: Type.Optional(Type.Literal(false, { description: 'Every user may write.' })),
};
const ONE_END = { not: { required: ['ttl', 'expiresAt'] } };

const TokenUserInput = Type.Object(
  {
    type: Type.Literal('token', { description: 'A user with a disk token.' }),
    nickname: Type.String({
      minLength: 1,
      maxLength: 255,
      description: 'For people.',
      examples: ['ci'],
    }),
    principal: Type.Optional(
      Type.String({
        minLength: 16,
        maxLength: 2048,
        deprecated: true,
        documented: { pattern: '^(?!key-)' },
        description:
          'A token chosen by the caller, not an API key; needs tokenSuffix. Leave it out and one is made.',
        examples: ['a-token-of-my-own-choice'],
      }),
    ),
    tokenSuffix: Type.Optional(
      Type.String({
        minLength: 4,
        maxLength: 4,
        deprecated: true,
        description: 'The last four characters of `principal`.',
        examples: ['oice'],
      }),
    ),
    ...END,
    ...RESTRICTIONS,
  },
  { documented: { dependentRequired: { principal: ['tokenSuffix'] }, ...ONE_END } },
);

const StsUserInput = Type.Object(
  {
    type: Type.Enum([...stsTypes], { description: 'A role of a cloud account.' }),
    principal: Type.String({
      minLength: 1,
      maxLength: 2048,
      description: 'Names the role.',
      examples: ['arn:aws:iam::123456789012:role/reader'],
    }),
    ...END,
    ...RESTRICTIONS,
  },
  { documented: ONE_END },
);

/** Body of add-disk-user, and item of the deprecated `authMethods` (docs/api.md, Disk users). */
export const DiskUserInput = taggedUnion('type', [TokenUserInput, StsUserInput]);
export type DiskUserInput = Type.Static<typeof DiskUserInput>;

export const AuthorizedUser = Type.Object(
  {
    type: Type.Enum(['token', ...stsTypes], { description: 'How the user proves who it is.' }),
    principal: Type.Optional(
      Type.String({
        description: 'The role, for users that are roles.',
        examples: ['arn:aws:iam::123456789012:role/reader'],
      }),
    ),
    nickname: Type.Optional(Type.String({ description: 'For people.', examples: ['ci'] })),
    tokenSuffix: Type.Optional(
      Type.String({
        minLength: 4,
        maxLength: 4,
        description: 'The last characters of the disk token.',
        examples: ['9f3c'],
      }),
    ),
    token: Type.Optional(
      Type.String({
        description: 'The whole disk token; only in the answer that creates it.',
        examples: ['dtk-0a1b2c3d4e5f'],
      }),
    ),
    identifier: Type.String({ description: 'Removes the user.', examples: ['user-0a1b2c3d'] }),
    createdAt: timestamp('When the user was added.'),
    expiresAt: Type.Optional(
      timestamp('When its credentials stop working; with the API key that added it at the latest.'),
    ),
  },
  { title: 'DiskUser' },
);
export type AuthorizedUser = Type.Static<typeof AuthorizedUser>;

export const DiskUserPath = Type.Object({
  id: diskId('Id of the disk.'),
  userType: Type.Enum(['token', ...stsTypes], { description: 'The `type` of the user.' }),
});

export const RemoveUserQuery = Type.Object({
  identifier: Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: 2048,
      description: 'The `identifier` of the user. Required, unless `principal` names it.',
      examples: ['user-0a1b2c3d'],
    }),
  ),
  principal: Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: 2048,
      deprecated: true,
      description: 'Use identifier.',
      examples: ['arn:aws:iam::123456789012:role/reader'],
    }),
  ),
});
