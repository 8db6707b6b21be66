import { Readable } from 'node:stream';
import { setImmediate } from 'node:timers/promises';
import { KiB } from '../../shared/units.ts';

/** How many characters become JSON at once; each may take six bytes there. */
const PIECE_LENGTH = 64 * KiB;

const isLong = (value: unknown): value is string =>
  typeof value === 'string' && value.length > PIECE_LENGTH;

const isRecord = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** Whether an answer has a text among its fields that is too long to be rendered at once. */
export const hasLongText = (data: unknown): data is Readonly<Record<string, unknown>> =>
  isRecord(data) && Object.values(data).some(isLong);

/**
 * Half of a pair of surrogates at the end of a piece is escaped by itself, which means the same.
 */
function* textPieces(text: string): Generator<string> {
  yield '"';
  for (let at = 0; at < text.length; at += PIECE_LENGTH) {
    yield JSON.stringify(text.slice(at, at + PIECE_LENGTH)).slice(1, -1);
  }
  yield '"';
}

/** The envelope of a success as JSON, in pieces. */
export function* envelopePieces(data: Readonly<Record<string, unknown>>): Generator<string> {
  yield '{"success":true,"data":{';
  let separator = '';
  for (const [name, value] of Object.entries(data)) {
    if (value === undefined) continue;
    yield `${separator}${JSON.stringify(name)}:`;
    separator = ',';
    if (isLong(value)) yield* textPieces(value);
    else yield JSON.stringify(value);
  }
  yield '}}';
}

/**
 * The same as a stream. Other requests are served between two pieces: the output of a command may
 * be 200 MB of JSON, which would hold them up for seconds.
 */
export function streamEnvelope(data: Readonly<Record<string, unknown>>): Readable {
  async function* pieces(): AsyncGenerator<string> {
    for (const piece of envelopePieces(data)) {
      yield piece;
      if (piece.length >= PIECE_LENGTH) await setImmediate();
    }
  }
  return Readable.from(pieces());
}

/** How many characters the texts among the fields of an answer have. */
export const textLength = (data: unknown): number =>
  isRecord(data)
    ? Object.values(data).reduce<number>(
        (sum, value) => sum + (typeof value === 'string' ? value.length : 0),
        0,
      )
    : 0;
