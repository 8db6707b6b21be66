import type { RedisClient } from './redis-client.ts';
import { AppError } from '../errors.ts';
import { parseJson } from '../json.ts';
import { LIMITS } from '../limits.ts';
import type { ActivityEvent, ActivityQuery } from '../schemas/activity.ts';
import { keys } from './keys.ts';
import type { Page } from './page.ts';

/** How many events are read at a time while looking for those that match. */
const READ_AT_ONCE = 500;

const encodeCursor = (entryId: string): string => Buffer.from(entryId).toString('base64url');

function decodeCursor(cursor: string): string {
  const entryId = Buffer.from(cursor, 'base64url').toString('utf8');
  if (/^\d{1,16}-\d{1,16}$/u.test(entryId) && encodeCursor(entryId) === cursor) return entryId;
  throw new AppError('bad_request', 'cursor is not one that this list returned');
}

/** The sandboxes that a call was about: named in its path, or made by it. */
function sandboxesOf({ params, sandboxId, childId }: ActivityEvent['details']): unknown[] {
  const { sid } = (params ?? {}) as Readonly<Record<string, unknown>>;
  return [sid, sandboxId, childId];
}

function matches(
  { diskId, eventType, level, details }: ActivityEvent,
  wanted: Omit<ActivityQuery, 'limit' | 'cursor'>,
): boolean {
  const { diskIds } = details;
  return (
    (wanted.sandboxId === undefined || sandboxesOf(details).includes(wanted.sandboxId)) &&
    (wanted.diskId === undefined ||
      wanted.diskId === diskId ||
      (Array.isArray(diskIds) && diskIds.includes(wanted.diskId))) &&
    (wanted.eventType === undefined || wanted.eventType.includes(eventType)) &&
    (wanted.level === undefined || wanted.level === level)
  );
}

/** The latest changes of each account: a stream in Redis that the oldest events fall out of. */
export class Activity {
  readonly #redis: RedisClient;

  constructor(redis: RedisClient) {
    this.#redis = redis;
  }

  async record(event: ActivityEvent): Promise<void> {
    await this.#redis.xadd(
      keys.activity(event.accountId),
      ...['MAXLEN', '~', String(LIMITS.activityPerAccountMax), '*'],
      ...['event', JSON.stringify(event)],
    );
  }

  /** Newest first. @throws AppError `bad_request` for a cursor that is none */
  async list(accountId: string, query: ActivityQuery): Promise<Page<ActivityEvent>> {
    const size = Math.min(query.limit ?? LIMITS.pageSizeDefault, LIMITS.pageSizeMax);
    const found: { readonly entryId: string; readonly event: ActivityEvent }[] = [];
    let end = query.cursor === undefined ? '+' : `(${decodeCursor(query.cursor)}`;
    for (;;) {
      const entries = await this.#read(accountId, end);
      for (const [entryId, event] of entries) {
        if (matches(event, query)) found.push({ entryId, event });
      }
      const last = entries.at(-1);
      if (found.length > size || last === undefined || entries.length < READ_AT_ONCE) break;
      end = `(${last[0]}`;
    }
    const page = found.slice(0, size);
    const last = page.at(-1);
    return {
      items: page.map(({ event }) => event),
      ...(found.length > size && last !== undefined
        ? { nextCursor: encodeCursor(last.entryId) }
        : {}),
    };
  }

  async #read(accountId: string, end: string): Promise<[string, ActivityEvent][]> {
    const key = keys.activity(accountId);
    const entries = await this.#redis.xrevrange(key, end, '-', 'COUNT', READ_AT_ONCE);
    return entries.map(([entryId, [, text = '']]) => [entryId, parseJson(text) as ActivityEvent]);
  }
}
