/* The fuzzer finds defects that are planted, and finds them again with the same seed. */
import test from 'ava';
import { parseRanges } from '../../agent/edge/s3/protocol/byte-ranges.ts';
import { fuzz } from './engine.ts';
import type { Target } from './target.ts';

const planted: Target = {
  name: 'planted',
  seeds: [],
  words: ['<open>', '<close>'],
  run(input) {
    const text = input.toString('latin1');
    const at = text.indexOf('<open>');
    if (at !== -1 && text.includes('<close>', at)) throw new Error('the planted defect');
  },
};
const plan = { corpus: [Buffer.from('seed')], executions: 20_000, isGuided: false };

test('a defect behind two magic words is found, and the same seed finds the same input', async (t) => {
  const first = await fuzz(planted, { ...plan, seed: 5 });
  t.is(first.failure?.error.message, 'the planted defect');
  t.deepEqual(await fuzz(planted, { ...plan, seed: 5 }), first);
  const other = await fuzz(planted, { ...plan, seed: 6 });
  t.notDeepEqual(other.failure?.input, first.failure?.input);
});

test('a defect that a corpus input shows is found at once', async (t) => {
  const corpus = [Buffer.from('fine'), Buffer.from('<open><close>')];
  const { executions, failure } = await fuzz(planted, { ...plan, corpus, seed: 1 });
  t.is(executions, 2);
  t.is(String(failure?.input), '<open><close>');
});

test('inputs that run new code are kept', async (t) => {
  const ranges: Target = {
    name: 'ranges-guided',
    seeds: [],
    words: ['bytes=', '0-1', ','],
    run: (input) => void parseRanges(input.toString('latin1'), 10),
  };
  const { found, failure } = await fuzz(ranges, {
    ...plan,
    executions: 1000,
    seed: 1,
    isGuided: true,
  });
  t.is(failure, undefined);
  t.true(found.some((input) => input.includes('bytes=')));
});
