import type { ApiKeys, Caller } from './api-keys.ts';
import { AppError } from '../errors.ts';

const USE_WRITTEN_EVERY_MS = 60_000;
const USES_REMEMBERED_MAX = 10_000;

/**
 * The API key in an `Authorization` header: `Bearer key-…`, or the older bare `key-…`
 * (docs/api.md, Authentication). Nothing of it has been checked.
 */
export const apiKeyOf = (header: string): string => header.trim().replace(/^bearer\s+/iu, '');

/** Checks API keys and keeps `lastUsedAt` roughly up to date. */
export class Authenticator {
  readonly #apiKeys: ApiKeys;
  readonly #usedAt = new Map<string, number>();

  constructor(apiKeys: ApiKeys) {
    this.#apiKeys = apiKeys;
  }

  /** The account behind an `Authorization` header. @throws AppError `unauthorized` */
  async authenticate(header: string): Promise<Caller> {
    const token = apiKeyOf(header);
    if (token === '') throw new AppError('unauthorized', 'Must provide an Authorization header');
    // The public client puts `key-` in front of whatever credential it was given.
    if (/^(key-)?dt-/u.test(token)) {
      throw new AppError('unauthorized', 'this is a disk token; an API key (key-…) is needed here');
    }
    const caller = token.startsWith('key-') ? await this.#apiKeys.authenticate(token) : undefined;
    if (caller === 'expired') throw new AppError('unauthorized', 'the API key has expired');
    if (caller === undefined) throw new AppError('unauthorized', 'the API key is not valid');
    this.#noteUse(caller.keyId);
    return caller;
  }

  /**
   * Writes `lastUsedAt` at most once a minute per key and without being awaited: people read the
   * figure, and no request should wait for it.
   */
  #noteUse(keyId: string): void {
    const now = Date.now();
    if (now - (this.#usedAt.get(keyId) ?? 0) < USE_WRITTEN_EVERY_MS) return;
    if (this.#usedAt.size >= USES_REMEMBERED_MAX) this.#usedAt.clear();
    this.#usedAt.set(keyId, now);
    this.#apiKeys.recordUse(keyId).catch(() => this.#usedAt.delete(keyId));
  }
}
