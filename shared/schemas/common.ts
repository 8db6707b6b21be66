import Type, { type TSchema } from 'typebox';
import { diskIdPattern } from '../ids.ts';

/** RFC 3339 in UTC with exactly three fraction digits, as `Date.toISOString` writes it. */
export const Timestamp = Type.String({ format: 'date-time' });

export const DiskId = Type.String({ pattern: diskIdPattern });

export const DiskPath = Type.Object({ id: DiskId });

/** `limit` and `cursor` of every paged list; a limit above the maximum is clamped. */
export const PageQuery = Type.Object({
  limit: Type.Optional(Type.Integer({ minimum: 1, maximum: Number.MAX_SAFE_INTEGER })),
  cursor: Type.Optional(Type.String({ minLength: 1, maxLength: 512 })),
});

/** The success envelope around `data` (docs/api.md, Envelope). */
export const success = <T extends TSchema>(data: T) =>
  Type.Object({ success: Type.Literal(true), data });

/** The success envelope of a paged list; `nextCursor` is absent on the last page. */
export const successPage = <T extends TSchema>(data: T) =>
  Type.Object({
    success: Type.Literal(true),
    data,
    nextCursor: Type.Optional(Type.String()),
  });

export const BareSuccess = Type.Object({ success: Type.Literal(true) });

export const Message = Type.Object({ message: Type.String() });

export const Failure = Type.Object({
  success: Type.Literal(false),
  error: Type.String(),
  code: Type.Optional(Type.String()),
});
