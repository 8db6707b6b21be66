import test from 'ava';
import { lineEndOf } from '../../../clients/console/src/lib/line-ends.ts';

test('a text has the line end that all of its lines have', (t) => {
  for (const lineEnd of ['\n', '\r\n', '\r']) {
    t.is(lineEndOf(`a${lineEnd}${lineEnd}b${lineEnd}`), lineEnd);
  }
  for (const text of ['', 'a line without an end', 'a\u2028b']) t.is(lineEndOf(text), '\n');
});

test('a text with several kinds of line ends has none of them', (t) => {
  for (const text of ['a\nb\r\n', 'a\r\nb\r', 'a\r\r\n', '\n\r']) t.is(lineEndOf(text), undefined);
});
