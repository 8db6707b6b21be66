import type { Random } from '../helpers/random.ts';

const INPUT_BYTES_MAX = 64 * 1024;
const STEPS_MAX = 6;
const REPEATS_MAX = 2000;

const interesting = [
  '0',
  '-1',
  '1',
  '255',
  '256',
  '65536',
  '4294967295',
  '9007199254740993',
  '1e9',
];
const oddBytes = ['\0', '\r\n', '\n', '\t', ' ', '%00', '\u007f', '\u00ff', '"', '\\', '\u2028'];

type Step = (input: Buffer, random: Random) => Buffer;

const splice = (input: Buffer, at: number, removed: number, added: Buffer | string): Buffer =>
  Buffer.concat([input.subarray(0, at), Buffer.from(added), input.subarray(at + removed)]);

const flipBit: Step = (input, random) => {
  if (input.length === 0) return input;
  const changed = Buffer.from(input);
  const at = random.below(changed.length);
  changed[at] = (changed[at] ?? 0) ^ (1 << random.below(8));
  return changed;
};

const setByte: Step = (input, random) =>
  splice(input, random.below(input.length + 1), 1, Buffer.of(random.below(256)));

const remove: Step = (input, random) => {
  const at = random.below(input.length + 1);
  return splice(input, at, 1 + random.below(Math.max(1, (input.length - at) / 2)), '');
};

const duplicate: Step = (input, random) => {
  const at = random.below(input.length + 1);
  const piece = input.subarray(at, at + 1 + random.below(64));
  return splice(input, random.below(input.length + 1), 0, piece);
};

const repeat: Step = (input, random) => {
  const at = random.below(input.length + 1);
  const piece = input.subarray(at, at + 1 + random.below(8));
  const count = 1 + random.below(REPEATS_MAX);
  return splice(input, at, 0, Buffer.concat(Array.from({ length: count }, () => piece)));
};

const changeNumber: Step = (input, random) => {
  const numbers = [...input.toString('latin1').matchAll(/\d+/gu)];
  if (numbers.length === 0) return input;
  const { index, 0: digits } = random.pick(numbers);
  return splice(input, index, digits.length, random.pick(interesting));
};

const cutOff: Step = (input, random) => input.subarray(0, random.below(input.length + 1));

const insertOdd: Step = (input, random) =>
  splice(input, random.below(input.length + 1), 0, random.pick(oddBytes));

const generic: readonly Step[] = [
  ...[flipBit, setByte, remove, duplicate, repeat, changeNumber, cutOff, insertOdd],
];

/** Makes a new input from one of the corpus by random mutations and the target's words. */
export function mutate(
  corpus: readonly Buffer[],
  words: readonly string[],
  random: Random,
): Buffer {
  const insertWord: Step = (input) =>
    splice(
      input,
      random.below(input.length + 1),
      random.below(2) * random.below(8),
      random.pick(words),
    );
  const cross: Step = (input) => {
    const other = random.pick(corpus);
    const head = input.subarray(0, random.below(input.length + 1));
    return Buffer.concat([head, other.subarray(random.below(other.length + 1))]);
  };
  const steps = [...generic, cross, ...(words.length === 0 ? [] : [insertWord, insertWord])];
  let input = random.pick(corpus);
  for (let left = 1 + random.below(STEPS_MAX); left > 0; left -= 1) {
    input = random.pick(steps)(input, random);
  }
  return input.subarray(0, INPUT_BYTES_MAX);
}
