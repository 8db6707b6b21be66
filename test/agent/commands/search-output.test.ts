import test from 'ava';
import * as fc from '../../helpers/fast-check.ts';
import { SearchOutput } from '../../../agent/commands/search-output.ts';
import { COMMAND_LIMITS } from '../../../agent/commands/limits.ts';

const MATCH = 1;
const STATISTICS = 2;
const PROBLEM = 3;
const END = 4;

const u32 = (value: number): Buffer => {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value);
  return bytes;
};
const u64 = (value: bigint): Buffer => {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64LE(value);
  return bytes;
};
const frame = (kind: number, payload: Buffer): Buffer =>
  Buffer.concat([Buffer.from([kind]), u32(payload.length), payload]);
const matchPayload = (line: bigint, path: Buffer, text: Buffer, flag = 0): Buffer =>
  Buffer.concat([u64(line), u32(path.length), Buffer.from([flag]), path, text]);
const match = (line: bigint, path: string, text: string, flag = 0): Buffer =>
  frame(MATCH, matchPayload(line, Buffer.from(path), Buffer.from(text), flag));
const end = (reason: number): Buffer => frame(END, Buffer.from([reason]));
const statistics = (...figures: bigint[]): Buffer =>
  frame(STATISTICS, Buffer.concat(figures.map(u64)));

function newOutput(maxResults = 10_000) {
  const state = { closed: 0 };
  const onClosed = (): void => {
    state.closed += 1;
  };
  return { output: new SearchOutput({ prefix: 'dir/', maxResults, onClosed }), state };
}

const matchesOf = (output: SearchOutput): unknown => JSON.parse(output.takeMatches().toString());

test('frames are read in pieces of any size', (t) => {
  const all = Buffer.concat([
    match(1n, 'a\nb', 'text', 1),
    statistics(1n, 2n, 3n, 4n),
    match(7n, 'c', ''),
    frame(PROBLEM, Buffer.from('first\n')),
    frame(PROBLEM, Buffer.from('second')),
    statistics(5n, 6n, 7n, 8n),
    end(1),
  ]);
  const property = fc.property(fc.array(fc.integer({ min: 1, max: 20 })), (sizes) => {
    const { output, state } = newOutput();
    let at = 0;
    for (const size of sizes) {
      output.write(all.subarray(at, at + size));
      at += size;
    }
    output.write(all.subarray(at));
    t.deepEqual(matchesOf(output), [
      { file: 'dir/a\nb', line: 1, text: 'text', truncated: true },
      { file: 'dir/c', line: 7, text: '' },
    ]);
    t.deepEqual([output.reason, output.problem, state.closed], ['incomplete', 'first', 0]);
    t.deepEqual(output.statistics, { filesScanned: 5, listingUs: 6, grepUs: 7, computeUs: 8 });
  });
  fc.assert(property);
});

test('any bytes at all end in an answer that can be read', (t) => {
  const anyFrame = fc
    .tuple(fc.integer({ min: 0, max: 5 }), fc.uint8Array({ maxLength: 60 }))
    .map(([kind, payload]) => frame(kind, Buffer.from(payload)));
  const goodFrame = fc
    .tuple(fc.bigInt({ min: 1n, max: 9n }), fc.uint8Array({ minLength: 1, maxLength: 9 }))
    .map(([line, path]) => frame(MATCH, matchPayload(line, Buffer.from(path), Buffer.from('x'))));
  const junk = fc.uint8Array({ maxLength: 40 }).map((bytes) => Buffer.from(bytes));
  const property = fc.property(fc.array(fc.oneof(goodFrame, anyFrame, junk)), (parts) => {
    const { output, state } = newOutput(3);
    for (const part of parts) output.write(part);
    t.true((matchesOf(output) as unknown[]).length <= 3);
    t.true(state.closed <= 1);
    if (state.closed === 1) t.is(output.reason, 'incomplete');
  });
  fc.assert(property, { numRuns: 2000 });
});

const path = Buffer.from('p');
const closes = test.macro<[bytes: Buffer]>({
  exec(t, bytes) {
    const { output, state } = newOutput(1);
    output.write(match(1n, 'kept', ''));
    output.write(bytes);
    t.deepEqual([output.reason, state.closed], ['incomplete', 1]);
    t.regex(output.problem ?? '', /^the search program failed: /u);
    output.write(match(1n, 'ignored', ''));
    t.deepEqual(matchesOf(output), [{ file: 'dir/kept', line: 1, text: '' }]);
  },
  title: (given = '') => `the search is ended by ${given}`,
});
test('an unknown kind', closes, frame(9, Buffer.alloc(0)));
test('a length beyond the bound', closes, Buffer.from([MATCH, 255, 255, 255, 255]));
test('a match without a path', closes, frame(MATCH, matchPayload(1n, Buffer.alloc(0), path)));
test('a match that is cut off', closes, frame(MATCH, Buffer.alloc(12)));
test('a path beyond its frame', closes, frame(MATCH, Buffer.concat([u64(1n), u32(9), path, path])));
test(
  'a path of 2³²−1 bytes',
  closes,
  frame(MATCH, Buffer.concat([u64(1n), u32(2 ** 32 - 1), path])),
);
test('line 0', closes, frame(MATCH, matchPayload(0n, path, path)));
test('line 2⁶⁴−1', closes, frame(MATCH, matchPayload(2n ** 64n - 1n, path, path)));
test('an unknown flag', closes, frame(MATCH, matchPayload(1n, path, path, 2)));
test('a text too long', closes, frame(MATCH, matchPayload(1n, path, Buffer.alloc(64 * 1024 + 1))));
test('a path too long', closes, frame(MATCH, matchPayload(1n, Buffer.alloc(4097, 'x'), path)));
test('more matches than asked for', closes, match(2n, 'x', ''));
test('statistics cut off', closes, statistics(1n, 2n, 3n));
test('statistics beyond all numbers', closes, statistics(1n, 2n, 3n, 2n ** 60n));
test('an end without a reason', closes, frame(END, Buffer.alloc(0)));
test('an unknown end', closes, end(6));

test('what is kept is bounded, as JSON', (t) => {
  const { output, state } = newOutput();
  // Each byte becomes six.
  const bytes = match(1n, 'file', '\u{1}'.repeat(60_000));
  let written = 0;
  while (state.closed === 0) {
    output.write(bytes);
    written += 1;
  }
  t.is(output.reason, 'max_results');
  const kept = output.takeMatches();
  t.true(kept.length <= COMMAND_LIMITS.grepMatchesBytesMax + 2);
  t.is((JSON.parse(kept.toString()) as unknown[]).length, written - 1);
});

test('the first reason is kept', (t) => {
  const { output } = newOutput();
  output.end('deadline');
  output.write(end(0));
  output.end('incomplete', 'later');
  t.deepEqual([output.reason, output.problem], ['deadline', undefined]);
  t.is(output.takeMatches().toString(), '[]');
});
