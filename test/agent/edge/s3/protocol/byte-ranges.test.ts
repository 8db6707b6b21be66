import test from 'ava';
import * as fc from '../../../../helpers/fast-check.ts';
import { parseRanges } from '../../../../../agent/edge/s3/protocol/byte-ranges.ts';

const SIZE = 100;
const huge = '9'.repeat(400);

type Pairs = [number, number][] | undefined;

const gives = test.macro({
  exec(t, header: string, expected: Pairs, size: number = SIZE) {
    const pairs = expected?.map(([start, end]) => ({ start, end }));
    t.deepEqual(parseRanges(header, size), pairs);
  },
  title: (_given, header: string, expected: Pairs, size: number = SIZE) =>
    `${header.slice(0, 60)} of ${size}: ${expected === undefined ? 'all' : JSON.stringify(expected)}`,
});

test(gives, 'bytes=0-0', [[0, 0]]);
test(gives, 'bytes=10-', [[10, 99]]);
test(gives, 'bytes=-10', [[90, 99]]);
test(gives, 'bytes=-1000', [[0, 99]]);
test(gives, 'BYTES=5-9', [[5, 9]]);
test(gives, 'bytes=5-1000', [[5, 99]]);
test(gives, `bytes=5-${huge}`, [[5, 99]]);
test(gives, `bytes=-${huge}`, [[0, 99]]);
// Nothing of the file: 416.
test(gives, 'bytes=100-', []);
test(gives, `bytes=${huge}-`, []);
test(gives, 'bytes=-0', []);
test(gives, 'bytes=0-', [], 0);
test(gives, 'bytes=200-300,400-', []);
// Ranges that cannot be satisfied do not spoil the others.
test(gives, 'bytes=200-300,1-2', [[1, 2]]);
// Several, in the order asked for; overlapping and adjacent ones are one.
test(gives, 'bytes=50-59, 0-9', [
  [50, 59],
  [0, 9],
]);
test(gives, 'bytes=0-9,10-19', [[0, 19]]);
test(gives, 'bytes=50-59,0-9,55-70', [
  [50, 70],
  [0, 9],
]);
test(gives, 'bytes=,, 1-2 ,', [[1, 2]]);
test(gives, 'bytes=0-0,2-2,-1,0-1', [
  [0, 2],
  [99, 99],
]);
// Malformed, of another unit, too many: as if there were none.
for (const header of [
  '',
  'bytes',
  'bytes=',
  'bytes=,',
  'bytes=-',
  'bytes=a-b',
  'bytes=5-2',
  'bytes=1-2,5-2',
  'bytes=1',
  'bytes=1-2-3',
  'bytes=+1-2',
  'bytes=0x1-2',
  'bytes=1.5-2',
  'bytes =1-2',
  'lines=1-2',
  `bytes=${'0-0,'.repeat(16)}1-1`,
]) {
  test(gives, header, undefined);
}

const number = fc.oneof(fc.nat(150), fc.bigInt({ min: 0n }));
const spec = fc.oneof(
  fc.tuple(number, fc.option(number)).map(([a, b]) => `${a}-${b ?? ''}`),
  number.map((n) => `-${n}`),
  fc.string({ maxLength: 5 }),
);

test('whatever the header says, ranges lie in the file, apart from each other', (t) => {
  fc.assert(
    fc.property(fc.array(spec, { maxLength: 20 }), fc.nat(120), (specs, size) => {
      const ranges = parseRanges(`bytes=${specs.join(',')}`, size);
      const sorted = (ranges ?? []).toSorted((a, b) => a.start - b.start);
      let free = 0;
      for (const { start, end } of sorted) {
        t.true(start >= free && end >= start && end < size);
        free = end + 2; // A range that touched would have been combined.
      }
    }),
  );
});
