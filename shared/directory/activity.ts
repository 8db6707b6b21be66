import type { RedisClient } from './redis-client.ts';
import { AppError } from '../errors.ts';
import { parseJson } from '../json.ts';
import { DIRECTORY_LIMITS } from './limits.ts';
import { SCHEMA_LIMITS } from '../schemas/limits.ts';
import type { ActivityEvent, ActivityQuery } from '../schemas/activity.ts';
import { keys } from './keys.ts';
import type { Page } from './page.ts';

/** How many events are read at a time while looking for those that match. */
const READ_AT_ONCE = 500;

/**
 * The streams of an account, in the order in which entries of the same moment are listed. What any
 * key or disk token can write as often as it likes has a stream of its own, so that it pushes out
 * no change.
 */
const STREAMS = {
  change: { mark: '', max: DIRECTORY_LIMITS.activityPerAccountMax, key: keys.activity },
  deletion: { mark: '-d', max: DIRECTORY_LIMITS.activityPerAccountMax, key: keys.deletions },
  refusal: { mark: '-r', max: DIRECTORY_LIMITS.refusalsPerAccountMax, key: keys.refusals },
} as const;
type Stream = keyof typeof STREAMS;
const ORDER = Object.keys(STREAMS) as Stream[];

const streamOf = ({ level, eventType }: ActivityEvent): Stream => {
  if (level === 'warning') return 'refusal';
  return eventType === 'disk.objects_deleted' ? 'deletion' : 'change';
};

interface Entry {
  /** `<milliseconds>-<number>`: in the same place when it is read again. */
  readonly entryId: string;
  readonly stream: Stream;
  readonly event: ActivityEvent;
}

type Position = Pick<Entry, 'entryId' | 'stream'>;

const encodeCursor = ({ entryId, stream }: Position): string =>
  Buffer.from(entryId + STREAMS[stream].mark).toString('base64url');

function decodeCursor(cursor: string): Position {
  const text = Buffer.from(cursor, 'base64url').toString('utf8');
  const [, entryId = '', mark = ''] = /^(\d{1,16}-\d{1,16})(-[a-z])?$/u.exec(text) ?? [];
  const stream = ORDER.find((each) => STREAMS[each].mark === mark);
  if (entryId !== '' && stream !== undefined && encodeCursor({ entryId, stream }) === cursor) {
    return { entryId, stream };
  }
  throw new AppError('bad_request', 'cursor is not one that this list returned');
}

const isOlder = (a: Entry, b: Entry): boolean => {
  const [aAt = 0, aNumber = 0] = a.entryId.split('-').map(Number);
  const [bAt = 0, bNumber = 0] = b.entryId.split('-').map(Number);
  return aAt < bAt || (aAt === bAt && aNumber < bNumber);
};

/** The newest one; of the same moment the first in the order of the streams. */
const firstOf = (entries: readonly (Entry | undefined)[]): Entry | undefined =>
  entries.reduce((first, entry) => {
    if (first === undefined || entry === undefined) return first ?? entry;
    return isOlder(first, entry) ? entry : first;
  }, undefined);

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

/** The latest changes of each account: streams in Redis that the oldest events fall out of. */
export class Activity {
  readonly #redis: RedisClient;

  constructor(redis: RedisClient) {
    this.#redis = redis;
  }

  async record(event: ActivityEvent): Promise<void> {
    const { key, max } = STREAMS[streamOf(event)];
    const limit = ['MAXLEN', '~', String(max)];
    await this.#redis.xadd(key(event.accountId), ...limit, '*', 'event', JSON.stringify(event));
  }

  /** Newest first. @throws AppError `bad_request` for a cursor that is none */
  async list(accountId: string, query: ActivityQuery): Promise<Page<ActivityEvent>> {
    const size = Math.min(query.limit ?? SCHEMA_LIMITS.pageSizeDefault, SCHEMA_LIMITS.pageSizeMax);
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

  /** All streams together. */
  async *#entries(
    accountId: string,
    after: Position | undefined,
  ): AsyncGenerator<Entry, undefined> {
    const streams = ORDER.map((stream, at) => {
      if (after === undefined) return this.#read(accountId, stream, '+');
      // Streams behind the cursor's own still have their entries of its moment to list.
      const isToCome = at > ORDER.indexOf(after.stream);
      return this.#read(accountId, stream, isToCome ? after.entryId : `(${after.entryId}`);
    });
    const heads = await Promise.all(streams.map(next));
    for (;;) {
      const first = firstOf(heads);
      if (first === undefined) return undefined;
      yield first;
      const at = heads.indexOf(first);
      const stream = streams[at];
      heads[at] = stream === undefined ? undefined : await next(stream);
    }
  }

  async *#read(accountId: string, stream: Stream, from: string): AsyncGenerator<Entry, undefined> {
    const key = STREAMS[stream].key(accountId);
    let end = from;
    for (;;) {
      const entries = await this.#redis.xrevrange(key, end, '-', 'COUNT', READ_AT_ONCE);
      for (const [entryId, [, text = '']] of entries) {
        yield { entryId, stream, event: parseJson(text) as ActivityEvent };
      }
      const last = entries.at(-1);
      if (last === undefined || entries.length < READ_AT_ONCE) return undefined;
      end = `(${last[0]}`;
    }
  }
}
