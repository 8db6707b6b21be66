import test from 'ava';
import * as fc from '../helpers/fast-check.ts';
import { findDuplicateKey, JsonRefused, parseCallerJson, parseJson } from '../../shared/json.ts';
import { jsonValues } from '../helpers/json-values.ts';

const refused = { instanceOf: JsonRefused };
const nested = (depth: number): string => '['.repeat(depth) + ']'.repeat(depth);

test('parseJson returns the same value as JSON.parse for any JSON', (t) => {
  fc.assert(
    fc.property(jsonValues, (value) => {
      const text = JSON.stringify(value);
      t.deepEqual(parseJson(text), JSON.parse(text));
    }),
  );
});

test('text that is not JSON throws a SyntaxError', (t) => {
  fc.assert(
    fc.property(fc.string(), (text) => {
      let isJson = true;
      try {
        JSON.parse(text);
      } catch {
        isJson = false;
      }
      if (isJson) t.notThrows(() => parseJson(text));
      else t.throws(() => parseJson(text), { instanceOf: SyntaxError });
    }),
  );
  for (const text of ['', '"', '"\\', '["\\"', '{', ']']) {
    t.throws(() => parseJson(text), { instanceOf: SyntaxError });
  }
});

test('nesting of arrays and objects is checked before anything is built', (t) => {
  t.notThrows(() => parseJson(nested(32)));
  t.throws(() => parseJson(nested(33)), refused);
  t.throws(() => parseJson('['.repeat(2_000_000)), refused);
  t.throws(() => parseJson('{"a":'.repeat(1_000_000)), refused);
  t.notThrows(() => parseJson(nested(100), { depthMax: 100 }));
});

test('brackets and commas in strings do not count, however the strings end', (t) => {
  for (const string of ['['.repeat(100), '\\'.repeat(99), '"{'.repeat(99), '\\"['.repeat(99)]) {
    t.deepEqual(parseJson(JSON.stringify([string, { [string]: string }])), [
      string,
      { [string]: string },
    ]);
  }
  t.throws(() => parseJson(`["\\\\",${nested(33)}]`), refused);
  t.is(parseJson(JSON.stringify(','.repeat(200_000))), ','.repeat(200_000));
});

test('strings end where they do, wherever their escapes are', (t) => {
  const parts = ['', '"', '\\', '\\"', '\n', 'a', 'a'.repeat(63), 'a'.repeat(64), 'a'.repeat(65)];
  fc.assert(
    fc.property(fc.array(fc.constantFrom(...parts), { maxLength: 12 }), (chosen) => {
      const string = chosen.join('');
      const value = [string, { [string]: '[' }];
      t.deepEqual(parseJson(JSON.stringify(value), { valuesMax: 5 }), value);
    }),
    { numRuns: 2000 },
  );
});

test('the number of values is bounded', (t) => {
  t.throws(() => parseJson(`[${'0,'.repeat(200_000)}0]`), refused);
  t.throws(() => parseJson(`[${'[],'.repeat(200_000)}0]`), refused);
  const keys = Array.from({ length: 200_000 }, (_, i) => `"k${i}":0`).join(',');
  t.throws(() => parseJson(`{${keys}}`), refused);
});

test('the key __proto__ is refused at any depth and in any spelling, but allowed as a value', (t) => {
  t.throws(() => parseJson('{"__proto__":{"isAdmin":true}}'), refused);
  t.throws(() => parseJson('[{"a":{"__prot\\u006f__":1,"\\u005f_proto__":1}}]'), refused);
  t.throws(() => parseJson('{"_\\u005Fproto__":1}'), refused);
  t.deepEqual(parseJson('["__proto__"]'), ['__proto__']);
});

test('a caller’s JSON with half of a surrogate pair is refused, wherever it is', (t) => {
  for (const text of [
    String.raw`"\ud800"`,
    String.raw`"\uDFFF"`,
    String.raw`{"a":["x\udc00\ud800"]}`,
    String.raw`{"a":{"\ud83d":1}}`,
    String.raw`["\\\ud800"]`,
  ]) {
    t.throws(() => parseCallerJson(text), refused, text);
    t.notThrows(() => parseJson(text));
  }
  for (const [text, value] of [
    [String.raw`"\ud83d\ude00"`, '😀'],
    [String.raw`"\\ud800"`, String.raw`\ud800`],
    ['"😀"', '😀'],
  ] as const) {
    t.is(parseCallerJson(text), value);
  }
});

test('a key that occurs twice in one object is found, however it is written', (t) => {
  t.is(findDuplicateKey('{"a":1,"b":2,"a":3}'), 'a');
  t.is(findDuplicateKey('{"x":[{"a":{"c":1},"\\u0061":2}]}'), 'a');
  t.is(findDuplicateKey('{"\\"":1, "\\u0022" : 2}'), '"');
  t.is(findDuplicateKey('{"":1,"":2}'), '');
  t.is(findDuplicateKey('[{"a":"a"},{"a":":"},{"b":{"a":1},"a":["a","a"]}]'), undefined);
  fc.assert(
    fc.property(jsonValues, (value) => {
      t.is(findDuplicateKey(JSON.stringify(value)), undefined);
      t.is(findDuplicateKey(`{"k":1,"v":${JSON.stringify(value)},"k":2}`), 'k');
    }),
  );
});
