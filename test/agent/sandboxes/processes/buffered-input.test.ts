import test from 'ava';
import { BufferedInput } from '../../../../agent/sandboxes/processes/buffered-input.ts';
import { KiB, MiB } from '../../../../shared/units.ts';
import * as fc from '../../../helpers/fast-check.ts';

const RETAINED_MAX = 64 * KiB;

test('the last bytes are those that were appended, whatever was trimmed between', (t) => {
  const step = fc.record({ length: fc.integer({ min: 0, max: 20 }), isSent: fc.boolean() });
  fc.assert(
    fc.property(fc.array(step, { maxLength: 100 }), (steps) => {
      const input = new BufferedInput(8);
      let all = Buffer.alloc(0);
      let unsentBytes = 0;
      const underWay: [seen: Buffer, copy: Buffer][] = [];
      for (const { length, isSent } of steps) {
        const bytes = Buffer.alloc(length, (all.length % 251) + 1);
        all = Buffer.concat([all, bytes]);
        input.append(bytes);
        unsentBytes += length;
        const wanted = Math.min(all.length, Math.max(8, unsentBytes));
        const last = input.last(wanted);
        t.deepEqual(last, all.subarray(all.length - wanted));
        underWay.push([last, Buffer.from(last)]);
        if (isSent) {
          input.trim();
          unsentBytes = 0;
        }
      }
      for (const [seen, copy] of underWay) t.deepEqual(seen, copy);
    }),
  );
});

test('input that comes byte by byte is moved once in many bytes, and little of it is kept', (t) => {
  const input = new BufferedInput(RETAINED_MAX);
  let moves = 0;
  let before: ArrayBufferLike | undefined;
  for (let count = 0; count < 4 * RETAINED_MAX; count += 1) {
    input.append(Buffer.of(1));
    const { buffer } = input.last(1);
    if (buffer !== before) moves += 1;
    before = buffer;
    input.trim();
  }
  t.true(moves < 40, `${moves} moves`);
  input.append(Buffer.alloc(4 * MiB));
  input.trim();
  t.is(input.last(Infinity).length, RETAINED_MAX);
  t.is(input.last(1).buffer.byteLength, 2 * RETAINED_MAX);
});
