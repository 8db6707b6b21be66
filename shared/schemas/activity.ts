import Type from 'typebox';
import { activityTypes } from '../activity-types.ts';
import { diskId, PageQuery, timestamp } from './common.ts';

const activityLevels = ['info', 'warning', 'error'] as const;
export type ActivityLevel = (typeof activityLevels)[number];

const eventType = Type.Enum([...activityTypes], { description: 'What was asked for.' });
const level = Type.Enum([...activityLevels], {
  description:
    '`info`: done; `warning`: refused, so that nothing has changed; `error`: failed, possibly half-way.',
});

export const ActivityEvent = Type.Object(
  {
    eventId: Type.String({
      description: 'A UUID that begins with the time.',
      examples: ['0199a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b'],
    }),
    accountId: Type.String({
      description: 'The account whose key was used.',
      examples: ['acct-0a1b2c3d4e5f6071'],
    }),
    diskId: Type.Optional(diskId('The disk that it was about; absent for other things.')),
    eventType,
    level,
    createdAt: timestamp('When the answer was ready.'),
    details: Type.Record(Type.String(), Type.Unknown(), {
      description:
        'Who (`keyId`, `address`), what (`operation`, `params`, ids of what was made), and how it ended (`outcome`, `status`, `code`, `requestId`). Never a body or a secret.',
      examples: [{ operation: 'createDisk', outcome: 'done', status: 201 }],
    }),
  },
  { title: 'ActivityEvent' },
);
export type ActivityEvent = Type.Static<typeof ActivityEvent>;

export const ActivityQuery = Type.Interface([PageQuery], {
  diskId: Type.Optional(diskId('Only what was about this disk.')),
  sandboxId: Type.Optional(
    Type.String({
      format: 'uuid',
      description: 'Only what was about this sandbox, also as the copy that a fork made.',
      examples: ['0199a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b'],
    }),
  ),
  eventType: Type.Optional(
    Type.Array(eventType, {
      maxItems: activityTypes.length,
      description: 'Only events of this type; may be given several times.',
      examples: [['disk.exec']],
    }),
  ),
  level: Type.Optional(level),
});
export type ActivityQuery = Type.Static<typeof ActivityQuery>;
