import Type from 'typebox';
import { SCHEMA_LIMITS } from './limits.ts';
import { FILE_KEY } from './patterns.ts';

/** Body of a share request (docs/api.md, POST /api/disks/{id}/share). */
export const CreateShareUrl = Type.Object(
  {
    key: Type.String({
      minLength: 1,
      maxLength: SCHEMA_LIMITS.shareKeyBytesMax,
      documented: { pattern: FILE_KEY },
      description: `The file, from the root of the disk. At most ${SCHEMA_LIMITS.shareKeyBytesMax} bytes in UTF-8.`,
      examples: ['reports/march.pdf'],
    }),
    expiresIn: Type.Optional(
      Type.Integer({
        minimum: 1,
        maximum: SCHEMA_LIMITS.shareTtlSecondsMax,
        default: SCHEMA_LIMITS.shareTtlSecondsDefault,
        description: 'Seconds for which the link works.',
        examples: [3600],
      }),
    ),
  },
  { title: 'CreateShareUrl' },
);
export type CreateShareUrl = Type.Static<typeof CreateShareUrl>;

export const ShareUrl = Type.Object(
  {
    url: Type.String({
      format: 'uri',
      description: 'Downloads the file; whoever has it needs nothing else.',
      examples: ['https://berth.example/api/shared/eyJhIjoi'],
    }),
    expiresIn: Type.Integer({
      minimum: 1,
      description: 'Seconds for which the link works.',
      examples: [3600],
    }),
  },
  { title: 'ShareUrl' },
);
export type ShareUrl = Type.Static<typeof ShareUrl>;

export const SharePath = Type.Object({
  token: Type.String({ description: 'The last part of the link.', examples: ['eyJhIjoi'] }),
});
