import test from 'ava';
import { text } from 'node:stream/consumers';
import {
  envelopePieces,
  hasLongText,
  streamEnvelope,
  textLength,
} from '../../../control/http/long-answer.ts';
import { KiB, MiB } from '../../../shared/units.ts';

/** Eight characters of every kind, repeated: pairs of surrogates come to lie across pieces. */
const odd = (length: number): string => 'x\0"\u{1f600}\ud800é\n\\'.repeat(length).slice(0, length);

test('an answer in pieces is the answer, whatever its texts have at the borders', async (t) => {
  for (const length of [64 * KiB + 1, 128 * KiB, 200_003]) {
    const data = {
      exitCode: 0,
      stdout: odd(length),
      stderr: odd(5),
      missing: undefined,
      nothing: null,
      timing: { totalMs: 1 },
    };
    t.true(hasLongText(data));
    const whole = JSON.parse(await text(streamEnvelope(data))) as unknown;
    t.deepEqual(whole, JSON.parse(JSON.stringify({ success: true, data })));
  }
});

test('no piece is long, even where each character takes six bytes', (t) => {
  const pieces = [...envelopePieces({ stdout: '\0'.repeat(MiB), stderr: '' })];
  t.true(pieces.length > 16);
  t.true(pieces.every(({ length }) => length <= 6 * 64 * KiB));
});

test('only texts among the fields of an answer are long', (t) => {
  t.false(hasLongText({ stdout: 'x'.repeat(64 * KiB) }));
  t.false(hasLongText(['x'.repeat(MiB)]));
  t.false(hasLongText(undefined));
  t.is(textLength({ stdout: 'abc', stderr: 'de', exitCode: 1 }), 5);
  t.is(textLength([]), 0);
});
