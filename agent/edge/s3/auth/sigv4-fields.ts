import type { S3Error } from '../protocol/errors.ts';
import type { Scope } from './sigv4-key.ts';

const CREDENTIAL_LENGTH_MAX = 512;

/** When a request was signed. */
export interface RequestTime {
  readonly epochMs: number;
  /** Time in the form `20130524T000000Z`. */
  readonly timestamp: string;
}

const basicFormat = (epochMs: number): string =>
  new Date(epochMs).toISOString().replaceAll(/[-:]|\.\d+/g, '');

/** Reads `20130524T000000Z` or the date of RFC 9110 §5.6.7; undefined if it is neither. */
export function readTimestamp(text: string): RequestTime | undefined {
  const [, ...basic] = /^(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z$/.exec(text) ?? [];
  const [year, month, day, hours, minutes, seconds] = basic;
  const isHttpDate = /^[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT$/.test(text);
  if (year === undefined && !isHttpDate) return undefined;
  const iso = `${year}-${month}-${day}T${hours}:${minutes}:${seconds}Z`;
  const epochMs = Date.parse(isHttpDate ? text : iso);
  if (Number.isNaN(epochMs)) return undefined;
  const timestamp = basicFormat(epochMs);
  // Date.parse takes 31 February for a day in March.
  return isHttpDate || timestamp === text ? { epochMs, timestamp } : undefined;
}

/**
 * Reads `<access key id>/<date>/<region>/s3/aws4_request`. An access key id may contain slashes.
 * @param malformed makes the error to throw
 */
export function readCredential(
  credential: string,
  malformed: (why: string) => S3Error,
): { accessKeyId: string; scope: Scope } {
  if (credential.length > CREDENTIAL_LENGTH_MAX) throw malformed('the credential is too long');
  const found = /^(.+)\/([0-9]{8})\/([A-Za-z0-9_-]+)\/([^/]+)\/([^/]+)$/.exec(credential);
  const [, accessKeyId, date, region, service, terminator] = found ?? [];
  if (accessKeyId === undefined || date === undefined || region === undefined) {
    throw malformed('the credential is not <key id>/<date>/<region>/s3/aws4_request');
  }
  if (service !== 's3') throw malformed('the service of the credential must be s3');
  if (terminator !== 'aws4_request') throw malformed('the credential must end with aws4_request');
  return { accessKeyId, scope: { date, region, text: `${date}/${region}/s3/aws4_request` } };
}
