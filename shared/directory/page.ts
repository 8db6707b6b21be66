import type { RedisClient } from './redis-client.ts';
import { AppError } from '../errors.ts';
import { DIRECTORY_LIMITS } from './limits.ts';
import { SCHEMA_LIMITS } from '../schemas/limits.ts';

export interface PageRequest {
  readonly limit?: number | undefined;
  readonly cursor?: string | undefined;
}

export interface Page<T> {
  readonly items: T[];
  readonly nextCursor?: string;
}

/** A sorted-set member that sorts by time of creation, then id, when ZRANGEBYLEX compares bytes. */
export const orderedMember = (createdAt: string, id: string): string =>
  `${String(Date.parse(createdAt)).padStart(15, '0')}:${id}`;

/** The id in an {@link orderedMember}. */
export const idOf = (member: string): string => member.slice(member.indexOf(':') + 1);

const encodeCursor = (member: string): string => Buffer.from(member).toString('base64url');

function decodeCursor(cursor: string): string {
  const member = Buffer.from(cursor, 'base64url').toString('utf8');
  if (!/^\d{15}:[\w-]{1,128}$/u.test(member) || encodeCursor(member) !== cursor) {
    throw new AppError('bad_request', 'cursor is not one that this list returned');
  }
  return member;
}

/** The most items on a page. */
function sizeOf({ limit, cursor }: PageRequest): number {
  if (limit === undefined && cursor === undefined) return DIRECTORY_LIMITS.unpagedListMax;
  return Math.min(limit ?? SCHEMA_LIMITS.pageSizeDefault, SCHEMA_LIMITS.pageSizeMax);
}

/** A page of a list that is small enough to be read as a whole; the same pages as readPage. */
export function pageOf<T extends { readonly createdAt: string; readonly id: string }>(
  all: readonly T[],
  request: PageRequest,
): Page<T> {
  const memberOf = ({ createdAt, id }: T): string => orderedMember(createdAt, id);
  const after = request.cursor === undefined ? '' : decodeCursor(request.cursor);
  const rest = all
    .map((item) => ({ item, member: memberOf(item) }))
    .filter(({ member }) => member > after)
    .sort((a, b) => (a.member < b.member ? -1 : 1));
  const page = rest.slice(0, sizeOf(request));
  const last = page.at(-1);
  return {
    items: page.map(({ item }) => item),
    ...(rest.length > page.length && last !== undefined
      ? { nextCursor: encodeCursor(last.member) }
      : {}),
  };
}

/**
 * A page of ids from a sorted set of {@link orderedMember}s, oldest first (docs/api.md, Paging).
 * Without limit and cursor the page holds up to 1000, for clients that do not follow cursors.
 */
export async function readPage(
  redis: RedisClient,
  key: string,
  request: PageRequest,
): Promise<Page<string>> {
  const size = sizeOf(request);
  const from = request.cursor === undefined ? '-' : `(${decodeCursor(request.cursor)}`;
  const members = await redis.zrangebylex(key, from, '+', 'LIMIT', 0, size + 1);
  const page = members.slice(0, size);
  const last = page.at(-1);
  return {
    items: page.map(idOf),
    ...(members.length > size && last !== undefined ? { nextCursor: encodeCursor(last) } : {}),
  };
}
