import type { Redis } from 'ioredis';
import { AppError } from '../errors.ts';
import { LIMITS } from '../limits.ts';

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

const idOf = (member: string): string => member.slice(member.indexOf(':') + 1);

const encodeCursor = (member: string): string => Buffer.from(member).toString('base64url');

function decodeCursor(cursor: string): string {
  const member = Buffer.from(cursor, 'base64url').toString('utf8');
  if (!/^\d{15}:[\w-]{1,128}$/u.test(member) || encodeCursor(member) !== cursor) {
    throw new AppError('bad_request', 'cursor is not one that this list returned');
  }
  return member;
}

/**
 * One page of ids from a sorted set of {@link orderedMember}s, oldest first (docs/api.md, Paging).
 * Without limit and cursor the page holds up to 1000, for clients that do not follow cursors.
 */
export async function readPage(
  redis: Redis,
  key: string,
  request: PageRequest,
): Promise<Page<string>> {
  const unpaged = request.limit === undefined && request.cursor === undefined;
  const size = unpaged
    ? LIMITS.unpagedListMax
    : Math.min(request.limit ?? LIMITS.pageSizeDefault, LIMITS.pageSizeMax);
  const from = request.cursor === undefined ? '-' : `(${decodeCursor(request.cursor)}`;
  const members = await redis.zrangebylex(key, from, '+', 'LIMIT', 0, size + 1);
  const page = members.slice(0, size);
  const last = page.at(-1);
  return {
    items: page.map(idOf),
    ...(members.length > size && last !== undefined ? { nextCursor: encodeCursor(last) } : {}),
  };
}
