import test from 'ava';
import { ProcessExcerpt } from '../../clients/mcp/src/process-excerpt.ts';
import { KiB } from '../../shared/units.ts';

const bytesOf = (text: string): Uint8Array => new TextEncoder().encode(text);

/** Reads it in answers of which each ends so many bytes later than the one before. */
function readInAnswers(output: Uint8Array, step: number): string {
  let text = '';
  let offset = 0;
  for (let end = step; offset < output.length; end += step) {
    const excerpt = new ProcessExcerpt(offset);
    // A byte at a time, as a process may write it.
    for (let at = offset; at < Math.min(end, output.length); at += 1) {
      excerpt.add({ stream: 'stdout', offset: at, bytes: output.subarray(at, at + 1) });
    }
    text += excerpt.stdout.text();
    offset = excerpt.nextOffset;
  }
  return text;
}

test('the next offset never splits a character', (t) => {
  const text = 'aé€😀'.repeat(20);
  for (const step of [1, 2, 3, 4, 5, 7]) t.is(readInAnswers(bytesOf(text), step), text);
});

test('a character is whole though the other stream comes in the middle of it', (t) => {
  const [first, second] = [bytesOf('€').subarray(0, 1), bytesOf('€').subarray(1)];
  const excerpt = new ProcessExcerpt(7);
  excerpt.add({ stream: 'stdout', offset: 9, bytes: first });
  t.deepEqual([excerpt.total, excerpt.nextOffset, excerpt.skippedBytes], [0, 9, 2]);
  excerpt.add({ stream: 'stderr', offset: 10, bytes: bytesOf('e') });
  excerpt.add({ stream: 'stdout', offset: 11, bytes: second });
  t.deepEqual([excerpt.stdout.text(), excerpt.stderr.text()], ['€', 'e']);
  t.is(excerpt.nextOffset, 13);
});

test('bytes that are no characters are held back only until something follows, or nothing will', (t) => {
  const excerpt = new ProcessExcerpt(0);
  excerpt.add({ stream: 'stdout', offset: 0, bytes: Uint8Array.of(0xe2) });
  t.is(excerpt.nextOffset, 0);
  excerpt.add({ stream: 'stdout', offset: 1, bytes: bytesOf('a'.repeat(KiB)) });
  t.is(excerpt.nextOffset, 1 + KiB);
  excerpt.add({ stream: 'stdout', offset: 1 + KiB, bytes: Uint8Array.of(0xf0, 0x9f) });
  t.is(excerpt.nextOffset, 1 + KiB);
  excerpt.release();
  t.is(excerpt.nextOffset, 3 + KiB);
  t.is(excerpt.stdout.text(), `\ufffd${'a'.repeat(KiB)}\ufffd`);
});
