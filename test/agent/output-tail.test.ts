import test from 'ava';
import * as fc from 'fast-check';
import { OutputTail } from '../../agent/runtimes/container/output-tail.ts';

test('keeps the last bytes and counts the others, however they come', (t) => {
  const chunks = fc.array(fc.uint8Array({ maxLength: 40 }), { maxLength: 40 });
  const property = fc.property(fc.integer({ min: 1, max: 100 }), chunks, (bytesMax, parts) => {
    const tail = new OutputTail(bytesMax);
    let written = Buffer.alloc(0);
    for (const [index, part] of parts.entries()) {
      tail.write(Buffer.from(part));
      written = Buffer.concat([written, part]);
      if (index % 7 === 0) t.deepEqual(tail.read(), written.subarray(-bytesMax));
    }
    t.deepEqual(tail.read(), written.subarray(-bytesMax));
    t.deepEqual(tail.read(), written.subarray(-bytesMax));
    t.is(tail.droppedBytes, Math.max(0, written.length - bytesMax));
  });
  fc.assert(property);
});

test('what was dropped does not stay in memory', (t) => {
  const tail = new OutputTail(10);
  tail.write(Buffer.alloc(1000));
  t.is(tail.read().buffer.byteLength < 1000 || tail.read().length === 10, true);
  t.is(tail.read().length, 10);
});
