import test from 'ava';
import * as fc from '../helpers/fast-check.ts';
import { JsonRefused, parseJson } from '../../shared/json.ts';
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
