import { PassThrough, type Readable } from 'node:stream';
import type { GrepMatches, GrepResult } from '../../../shared/schemas/grep.ts';
import { toCallerError } from '../../http/error-status.ts';

/** Headers of server-sent events; the last one keeps proxies in front from collecting them. */
export const EVENT_STREAM_HEADERS = {
  'content-type': 'text/event-stream',
  'cache-control': 'no-store',
  'x-accel-buffering': 'no',
} as const;

/** The answer of a search without its matches. */
export type GrepSummary = Omit<GrepResult, 'matches'>;

const eventText = (kind: string, data: object): string =>
  `event: ${kind}\ndata: ${JSON.stringify(data)}\n\n`;

/**
 * Runs a search and writes events of it as they come. Resolves with the first matches or with the
 * end, so that a search that cannot begin fails like one without events. What the caller has not
 * read yet waits here: all matches of a search together are bounded.
 * @param search calls its argument with matches; its result has the others
 * @param onEnd given how many matches there were
 * @throws AppError what the search throws before its first match
 */
export async function grepEvents(
  search: (onMatches: (matches: GrepMatches) => void) => Promise<GrepResult>,
  onEnd: (summary: GrepSummary, matchCount: number) => void,
): Promise<Readable> {
  const events = new PassThrough();
  const begun = Promise.withResolvers<void>();
  let matchCount = 0;
  const send = (matches: GrepMatches): void => {
    if (matches.length === 0) return;
    matchCount += matches.length;
    events.write(eventText('matches', matches));
    begun.resolve();
  };
  const run = async (): Promise<void> => {
    try {
      const { matches, ...summary } = await search(send);
      send(matches);
      onEnd(summary, matchCount);
      events.end(eventText('end', summary));
    } catch (thrown) {
      if (matchCount === 0) throw thrown;
      const { code, message } = toCallerError(thrown);
      events.end(eventText('failed', { code, error: message }));
    }
  };
  await Promise.race([begun.promise, run()]);
  return events;
}
