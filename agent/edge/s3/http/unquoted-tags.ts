import type { RequestHeaders } from '../protocol/preconditions.ts';
import { quoted } from './operation.ts';

/** An ETag with its quotes: S3 clients send ETags with and without them. Other text stays. */
export const withQuotes = (text: string): string =>
  /^[0-9a-f]{32}(-\d{1,5})?$/u.test(text) ? quoted(text) : text;

/** The headers of a request for an object, with quotes around the ETags of its conditions. */
export function withQuotedTags(headers: RequestHeaders): RequestHeaders {
  const tags = ['if-match', 'if-none-match', 'if-range'].flatMap((name) => {
    const value = headers[name];
    return value === undefined ? [] : [[name, withQuotes(value)]];
  });
  return { ...headers, ...(Object.fromEntries(tags) as Record<string, string>) };
}
