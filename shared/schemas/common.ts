import Type, { type TSchema } from 'typebox';
import { diskIdPattern } from '../ids.ts';
import { DURATION } from './patterns.ts';

/** RFC 3339 in UTC with exactly three fraction digits, as `Date.toISOString` writes it. */
const TIMESTAMP = { format: 'date-time', examples: ['2026-03-01T12:00:00.000Z'] } as const;

export const Timestamp = Type.String(TIMESTAMP);

export const timestamp = (description: string) => Type.String({ ...TIMESTAMP, description });

/** How long a credential works; `parseTtl` (control/http/credential-ends.ts) reads it. */
export const ttl = (description: string, example: string) =>
  Type.String({
    minLength: 1,
    maxLength: 64,
    documented: { pattern: DURATION },
    description,
    examples: [example],
  });

const DISK_ID = { pattern: diskIdPattern, examples: ['dsk-0a1b2c3d4e5f6071'] } as const;

/** Id of a disk. */
export const diskId = (description: string) => Type.String({ ...DISK_ID, description });

export const DiskId = diskId('Id of the disk.');

export const DiskPath = Type.Object({ id: DiskId });

/** `limit` and `cursor` of every paged list; a limit above the maximum is clamped. */
export const PageQuery = Type.Object({
  limit: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: Number.MAX_SAFE_INTEGER,
      description: 'The most items on a page; a larger number counts as the maximum.',
      examples: [50],
    }),
  ),
  cursor: Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: 512,
      description: 'The `nextCursor` of the page before; left out for the first page.',
      examples: ['MTcwOTI5NDQwMDAwMA'],
    }),
  ),
});

const Succeeded = Type.Literal(true, { description: 'The call succeeded.' });

/** The success envelope around `data` (docs/api.md, Envelope). */
export const success = <T extends TSchema>(data: T) => Type.Object({ success: Succeeded, data });

/** The success envelope of a paged list; `nextCursor` is absent on the last page. */
export const successPage = <T extends TSchema>(data: T) =>
  Type.Object({
    success: Succeeded,
    data,
    nextCursor: Type.Optional(
      Type.String({
        description: 'Asks for the next page; absent on the last one.',
        examples: ['MTcwOTI5NDQwMDAwMA'],
      }),
    ),
  });

export const BareSuccess = Type.Object({ success: Succeeded });

export const Message = Type.Object(
  {
    message: Type.String({ description: 'What was done, for people.', examples: ['User removed'] }),
  },
  { title: 'Message' },
);

export const Failure = Type.Object(
  {
    success: Type.Literal(false, { description: 'The call failed.' }),
    error: Type.String({
      description: 'What went wrong and what to do about it, for people.',
      examples: ['disk dsk-0a1b2c3d4e5f6071 not found'],
    }),
    code: Type.Optional(
      Type.String({ description: 'What went wrong, for programs.', examples: ['not_found'] }),
    ),
  },
  { title: 'Failure', description: 'The envelope of every error.' },
);
