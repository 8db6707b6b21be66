import type { RedisClient } from './redis-client.ts';
import { AppError } from '../errors.ts';
import { parseJson } from '../json.ts';
import { LIMITS } from '../limits.ts';
import type { ActivityEvent, ActivityQuery } from '../schemas/activity.ts';
import { keys } from './keys.ts';
import type { Page } from './page.ts';

/** How many events are read at a time while looking for those that match. */
const READ_AT_ONCE = 500;

interface Entry {
  /** `<milliseconds>-<number>`: in the same place when it is read again. */
  readonly entryId: string;
  readonly isRefused: boolean;
  readonly event: ActivityEvent;
}

type Place = Pick<Entry, 'entryId' | 'isRefused'>;

const encodeCursor = ({ entryId, isRefused }: Place): string =>
  Buffer.from(isRefused ? `${entryId}-r` : entryId).toString('base64url');

function decodeCursor(cursor: string): Place {
  const text = Buffer.from(cursor, 'base64url').toString('utf8');
  const [, entryId = '', mark] = /^(\d{1,16}-\d{1,16})(-r)?$/u.exec(text) ?? [];
  const place = { entryId, isRefused: mark !== undefined };
  if (entryId !== '' && encodeCursor(place) === cursor) return place;
  throw new AppError('bad_request', 'cursor is not one that this list returned');
}

/** The newer one; a change before a refusal of the same moment. */
function firstOf(change: Entry | undefined, refusal: Entry | undefined): Entry | undefined {
  if (change === undefined || refusal === undefined) return change ?? refusal;
  const [changedAt = 0, changeNumber = 0] = change.entryId.split('-').map(Number);
  const [refusedAt = 0, refusalNumber = 0] = refusal.entryId.split('-').map(Number);
  const isRefusalNewer =
    refusedAt > changedAt || (refusedAt === changedAt && refusalNumber > changeNumber);
  return isRefusalNewer ? refusal : change;
}

async function next(entries: AsyncGenerator<Entry, undefined>): Promise<Entry | undefined> {
  const { value } = await entries.next();
  return value;
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

/**
 * The latest changes of each account: a stream in Redis that the oldest events fall out of. Calls
 * that were refused have a stream of their own, since any key, however little it may do, can make
 * as many of them as it likes: they must not push out changes.
 */
export class Activity {
  readonly #redis: RedisClient;

  constructor(redis: RedisClient) {
    this.#redis = redis;
  }

  async record(event: ActivityEvent): Promise<void> {
    const isRefused = event.level === 'warning';
    const max = isRefused ? LIMITS.refusalsPerAccountMax : LIMITS.activityPerAccountMax;
    const key = isRefused ? keys.refusals(event.accountId) : keys.activity(event.accountId);
    const limit = ['MAXLEN', '~', String(max)];
    await this.#redis.xadd(key, ...limit, '*', 'event', JSON.stringify(event));
  }

  /** Newest first. @throws AppError `bad_request` for a cursor that is none */
  async list(accountId: string, query: ActivityQuery): Promise<Page<ActivityEvent>> {
    const size = Math.min(query.limit ?? LIMITS.pageSizeDefault, LIMITS.pageSizeMax);
    const after = query.cursor === undefined ? undefined : decodeCursor(query.cursor);
    const found: Entry[] = [];
    for await (const entry of this.#entries(accountId, after)) {
      if (matches(entry.event, query)) found.push(entry);
      if (found.length > size) break;
    }
    const page = found.slice(0, size);
    const last = page.at(-1);
    return {
      items: page.map(({ event }) => event),
      ...(found.length > size && last !== undefined ? { nextCursor: encodeCursor(last) } : {}),
    };
  }

  /** Both streams together. */
  async *#entries(accountId: string, after: Place | undefined): AsyncGenerator<Entry, undefined> {
    const end = after === undefined ? '+' : `(${after.entryId}`;
    // After a change, a refusal of the same moment is still to come.
    const refusalsEnd = after?.isRefused === false ? after.entryId : end;
    const changes = this.#read(keys.activity(accountId), end, false);
    const refusals = this.#read(keys.refusals(accountId), refusalsEnd, true);
    let [change, refusal] = await Promise.all([next(changes), next(refusals)]);
    for (;;) {
      const first = firstOf(change, refusal);
      if (first === undefined) return undefined;
      yield first;
      if (first === change) change = await next(changes);
      else refusal = await next(refusals);
    }
  }

  async *#read(key: string, from: string, isRefused: boolean): AsyncGenerator<Entry, undefined> {
    let end = from;
    for (;;) {
      const entries = await this.#redis.xrevrange(key, end, '-', 'COUNT', READ_AT_ONCE);
      for (const [entryId, [, text = '']] of entries) {
        yield { entryId, isRefused, event: parseJson(text) as ActivityEvent };
      }
      const last = entries.at(-1);
      if (last === undefined || entries.length < READ_AT_ONCE) return undefined;
      end = `(${last[0]}`;
    }
  }
}
