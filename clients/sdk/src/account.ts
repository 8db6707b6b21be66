import type { CallOptions, Http } from './http.ts';
import type { operations } from './generated/api.ts';
import { Pages } from './pages.ts';
import type { ActivityEvent, Usage } from './types.ts';

const READ = { retry: 'repeatable' } as const;

/** Which events are wanted, and `limit`: how many a page has. */
export type ListActivityOptions = CallOptions &
  Omit<NonNullable<operations['listActivity']['parameters']['query']>, 'cursor'>;

/** Activity and usage of the account. */
export class Account {
  readonly #http: Http;

  /** @internal */
  constructor(http: Http) {
    this.#http = http;
  }

  /** The latest changes that keys of the account asked for, newest first. */
  activity(options: ListActivityOptions = {}): Pages<ActivityEvent> {
    const { signal, timeoutMs, retries, ...wanted } = options;
    return new Pages(async (cursor) => {
      const query = { limit: 100, ...wanted, ...(cursor === undefined ? {} : { cursor }) };
      const call = { signal, timeoutMs, retries };
      const { data, nextCursor } = await this.#http.call(READ, call, (client, init) =>
        client.GET('/api/activity', { ...init, params: { query } }),
      );
      return { items: data, nextCursor };
    });
  }

  /** @param options `month`: in UTC, such as `2026-11`; without it the present one */
  async usage({
    month,
    ...options
  }: CallOptions & { readonly month?: string } = {}): Promise<Usage> {
    const query = month === undefined ? {} : { month };
    const { data } = await this.#http.call(READ, options, (client, init) =>
      client.GET('/api/usage', { ...init, params: { query } }),
    );
    return data;
  }
}
