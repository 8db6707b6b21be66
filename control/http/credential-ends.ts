import { parseDuration } from '../../shared/duration.ts';
import { AppError } from '../../shared/errors.ts';
import { SCHEMA_LIMITS } from '../../shared/schemas/limits.ts';
import { HOUR_MS } from '../../shared/units.ts';

/** The last time with a year of four digits. */
const END_MAX = Date.UTC(9999, 11, 31, 23, 59, 59, 999);

/**
 * Reads `expiresAt`, in milliseconds since the epoch.
 * @throws AppError `bad_request` for times that RFC 3339 does not have, which the schema lets
 *   through
 */
export function parseEnd(text: string): number {
  // Dates have no leap seconds: the credential ends within the second before.
  const end = Date.parse(text.replace(/:60(?=[.z+-])/iu, ':59'));
  if (Number.isNaN(end)) {
    throw new AppError('bad_request', 'body: expiresAt must be a time as RFC 3339 writes it');
  }
  return Math.min(Math.max(end, 0), END_MAX);
}

/** Reads `ttl`, in milliseconds. @throws AppError `bad_request` */
export function parseTtl(ttl: string): number {
  const ms = parseDuration(ttl);
  if (ms === undefined) {
    throw new AppError('bad_request', 'body: ttl must be a duration such as 90s, 4m or 1h30m');
  }
  if (ms <= 0 || ms > SCHEMA_LIMITS.credentialTtlMsMax) {
    const hours = SCHEMA_LIMITS.credentialTtlMsMax / HOUR_MS;
    throw new AppError('bad_request', `body: ttl must be more than 0 and at most ${hours}h`);
  }
  return Math.ceil(ms);
}
