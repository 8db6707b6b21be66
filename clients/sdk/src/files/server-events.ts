import type { FetchAnswer } from '../transport.ts';
import { bodyPieces } from './body-pieces.ts';

interface ServerEvent {
  readonly type: string;
  /** The event's parsed line of JSON. */
  readonly data: unknown;
}

/**
 * @internal The events of an answer of type text/event-stream, as this API writes them; not its
 *   comments.
 * @param silenceMs the longest time without a byte, in milliseconds
 * @throws ConnectionError when it breaks; the signal's reason
 */
export async function* serverEvents(
  response: FetchAnswer,
  silenceMs: number,
  signal: AbortSignal | undefined,
): AsyncGenerator<ServerEvent, void, undefined> {
  const decoder = new TextDecoder();
  let rest = '';
  for await (const piece of bodyPieces(response, silenceMs, signal)) {
    const texts = (rest + decoder.decode(piece, { stream: true })).split('\n\n');
    rest = texts.pop() ?? '';
    for (const text of texts) {
      const [, type, data] = /^event: (\w+)\ndata: (.*)$/u.exec(text) ?? [];
      if (type !== undefined && data !== undefined)
        yield { type, data: JSON.parse(data) as unknown };
    }
  }
}
