import { S3Error } from '../protocol/errors.ts';
import { isHeaderValue, toHeaderValue } from '../protocol/raw-headers.ts';
import type { ObjectTarget } from './target.ts';

/** Headers of the answer by the query parameters that replace them, as presigned URLs use them. */
const OVERRIDES: ReadonlyMap<string, string> = new Map(
  [
    'content-type',
    'content-language',
    'expires',
    'cache-control',
    'content-disposition',
    'content-encoding',
  ].map((name) => [`response-${name}`, name]),
);

/**
 * The headers that a query replaces in the answer; values have one character a byte.
 * @throws S3Error InvalidArgument for a value that no header can have
 */
export function headerOverrides({ query }: Pick<ObjectTarget, 'query'>): Record<string, string> {
  const headers: Record<string, string> = {};
  for (const [parameter, given] of query) {
    const name = OVERRIDES.get(parameter);
    if (name === undefined) continue;
    const value = toHeaderValue(given);
    if (!isHeaderValue(value)) {
      throw new S3Error('InvalidArgument', `${parameter} has a value that no header can have.`);
    }
    headers[name] = value;
  }
  return headers;
}
