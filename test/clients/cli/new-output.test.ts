import test from 'ava';
import { NewOutput } from '../../../clients/cli/src/new-output.ts';
import * as fc from '../../helpers/fast-check.ts';

const encoder = new TextEncoder();
const decoder = new TextDecoder();

test('output is printed once, wherever looks at it come, within characters as well', (t) => {
  const looks = fc.array(fc.nat(400), { maxLength: 20 });
  fc.assert(
    fc.property(fc.string({ unit: 'binary', maxLength: 100 }), looks, (text, ends) => {
      const bytes = encoder.encode(text);
      const output = new NewOutput();
      const printed = ends
        .toSorted((one, other) => one - other)
        .map((end) => output.in(decoder.decode(bytes.subarray(0, end)), false));
      return printed.join('') + output.in(decoder.decode(bytes), true) === decoder.decode(bytes);
    }),
  );
  t.pass();
});

test('nothing is lost or printed twice when the beginning was dropped, though lines repeat', (t) => {
  const lines = Array.from({ length: 300 }, (_, n) => (n % 7 === 0 ? `é ${n}\n` : 'tick é\n'));
  const bytes = encoder.encode(lines.join(''));
  // Each look sees the last 900 bytes, so that many begin and end within a character.
  for (const step of [1, 10, 101, 850]) {
    const output = new NewOutput();
    let printed = '';
    for (let end = step; end < bytes.length; end += step) {
      printed += output.in(decoder.decode(bytes.subarray(Math.max(0, end - 900), end)), false);
    }
    printed += output.in(decoder.decode(bytes.subarray(-900)), true);
    t.true(printed === lines.join(''), `looks every ${step} bytes`);
  }
});

test('all that is kept is printed when nothing of it was seen', (t) => {
  const output = new NewOutput();
  t.is(output.in('first\n', false), 'first\n');
  t.is(output.in('\uFFFDother\n', true), 'other\n');
});
