import type { CallOptions, CreatingCallOptions, Http } from './http.ts';
import { Pages } from './pages.ts';
import type { ApiKey, CreateApiKey, CreatedApiKey, EndedWithKey } from './types.ts';

const READ = { retry: 'repeatable' } as const;

/** The API keys of the account. */
export class ApiKeys {
  readonly #http: Http;

  /** @internal */
  constructor(http: Http) {
    this.#http = http;
  }

  /** @returns the key with its token, which is shown only here */
  async create(key: CreateApiKey, options: CreatingCallOptions = {}): Promise<CreatedApiKey> {
    const { data } = await this.#http.call({ retry: 'keyed' }, options, (client, init) =>
      client.POST('/api/tokens', { ...init, body: key }),
    );
    return data;
  }

  /** Without their tokens. @param options `limit`: how many a page has, 1 to 100 */
  list({ limit = 100, ...options }: CallOptions & { readonly limit?: number } = {}): Pages<ApiKey> {
    return new Pages(async (cursor) => {
      const query = { limit, ...(cursor === undefined ? {} : { cursor }) };
      const { data, nextCursor } = await this.#http.call(READ, options, (client, init) =>
        client.GET('/api/tokens', { ...init, params: { query } }),
      );
      return { items: data.tokens, nextCursor };
    });
  }

  /** Deletes a key. @returns the webhooks and public ports that ended with it */
  async delete(id: string, options: CallOptions = {}): Promise<EndedWithKey> {
    const { data } = await this.#http.call({ ...READ, isDeletion: true }, options, (client, init) =>
      client.DELETE('/api/tokens/{id}', { ...init, params: { path: { id } } }),
    );
    return data.ended ?? { webhooks: [], ports: [] }; // Servers of earlier versions say nothing.
  }
}
