import test from 'ava';
import { GiB, KiB, MiB, sizeInWords } from '../../shared/units.ts';

test('a size is told in the largest unit that it is a multiple of', (t) => {
  t.is(sizeInWords(16 * MiB), '16 MiB');
  t.is(sizeInWords(GiB + MiB), '1025 MiB');
  t.is(sizeInWords(KiB), '1 KiB');
  t.is(sizeInWords(1000), '1000 bytes');
});
