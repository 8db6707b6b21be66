import { ConnectionError } from '../errors.ts';
import { Deadline, reasonOf } from '../timing.ts';
import type { FetchAnswer } from '../transport.ts';

function throwIfAborted(signal: AbortSignal | undefined): void {
  if (signal?.aborted === true) throw reasonOf(signal);
}

/**
 * @internal The body of an answer, piece by piece. A loop that is left early ends the request.
 * @param silenceMs the longest wait for a piece, in milliseconds
 * @throws ConnectionError when it breaks; the signal's reason
 */
export async function* bodyPieces(
  { body }: FetchAnswer,
  silenceMs: number,
  signal: AbortSignal | undefined,
): AsyncGenerator<Uint8Array, void, undefined> {
  if (body === null) return;
  const reader = body.getReader();
  const leave = (): void => {
    reader.cancel().catch(() => undefined); // The stream has failed already.
  };
  signal?.addEventListener('abort', leave);
  try {
    for (;;) {
      throwIfAborted(signal);
      const silence = new Deadline(silenceMs);
      silence.signal.addEventListener('abort', leave);
      const { done, value } = await reader
        .read()
        .catch((cause: unknown) => {
          throw new ConnectionError('the answer broke off', { cause });
        })
        .finally(() => silence.clear());
      if (silence.isOver) throw new ConnectionError(`nothing more came for ${silenceMs} ms`);
      throwIfAborted(signal);
      if (done) return;
      yield value;
    }
  } finally {
    signal?.removeEventListener('abort', leave);
    leave();
  }
}
