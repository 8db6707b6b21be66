import test from 'ava';
import { sealKey } from '../../../../agent/machines/nfs/handle-seal.ts';

const SECRET = Buffer.alloc(32, 1);
const one = { diskId: 'dsk-1', subdirectory: '' };
const two = { diskId: 'dsk-2', subdirectory: 'sub' };

test('the same disks have the same key, in whatever order they are named', (t) => {
  t.is(sealKey(SECRET, [one, two]).length, 16);
  t.deepEqual(sealKey(SECRET, [one, two]), sealKey(SECRET, [two, one]));
});

test('other disks, another subdirectory and another secret have another key', (t) => {
  const others = [
    sealKey(SECRET, [one]),
    sealKey(SECRET, [two]),
    sealKey(SECRET, [{ ...two, subdirectory: '' }, one]),
    sealKey(Buffer.alloc(32, 2), [one, two]),
  ];
  for (const other of others) t.notDeepEqual(other, sealKey(SECRET, [one, two]));
});
