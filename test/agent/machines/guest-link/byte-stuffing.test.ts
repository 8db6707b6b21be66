import test from 'ava';
import * as fc from '../../../helpers/fast-check.ts';
import {
  stuff,
  stuffedLengthMax,
  unstuff,
} from '../../../../agent/machines/guest-link/byte-stuffing.ts';

/** Many zeros and many long runs without any: both are where stuffing can go wrong. */
const bytes = fc
  .array(
    fc.oneof(
      fc.integer({ min: 0, max: 600 }).map((length) => Buffer.alloc(length, 7)),
      fc.integer({ min: 0, max: 5 }).map((length) => Buffer.alloc(length)),
      fc.uint8Array({ maxLength: 20 }).map((array) => Buffer.from(array)),
    ),
    { maxLength: 8 },
  )
  .map((parts) => Buffer.concat(parts));

test('stuffed bytes have one zero, at their end, and become what they were', (t) => {
  fc.assert(
    fc.property(bytes, (original) => {
      const stuffed = stuff(original);
      t.is(stuffed.indexOf(0), stuffed.length - 1);
      t.true(stuffed.length <= stuffedLengthMax(original.length) + 1);
      t.deepEqual(unstuff(stuffed.subarray(0, -1)), original);
    }),
  );
});

for (const length of [0, 1, 253, 254, 255, 508, 509]) {
  test(`runs of ${length} bytes, with a zero behind them and without`, (t) => {
    const run = Buffer.alloc(length, 1);
    for (const original of [run, Buffer.concat([run, Buffer.alloc(1)])]) {
      t.deepEqual(unstuff(stuff(original).subarray(0, -1)), original);
    }
  });
}

test('what leads beyond its end is refused', (t) => {
  t.throws(() => unstuff(Buffer.from([5, 1, 1])));
  t.throws(() => unstuff(Buffer.from([2, 1, 0, 1])));
});
