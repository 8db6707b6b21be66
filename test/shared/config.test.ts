import test from 'ava';
import * as fc from '../helpers/fast-check.ts';
import { readControlConfig } from '../../control/config.ts';
import { ConfigReader } from '../../shared/config.ts';
import { unicodeText } from '../helpers/unicode-text.ts';

/** The problem that the reader reports, or undefined. */
function problemOf(
  environment: Record<string, string | undefined>,
  read: (reader: ConfigReader) => unknown,
): string | undefined {
  const reader = new ConfigReader(environment);
  read(reader);
  try {
    reader.finish();
    return undefined;
  } catch (error) {
    return (error as Error).message;
  }
}

test('an integer is accepted between its bounds and refused outside of them', (t) => {
  fc.assert(
    fc.property(fc.integer(), fc.integer(), fc.integer(), (value, a, b) => {
      const bounds = { min: Math.min(a, b), max: Math.max(a, b) };
      const inside = value >= bounds.min && value <= bounds.max;
      const problem = problemOf({ X: String(value) }, (reader) => {
        t.is(reader.integer('X', bounds), value);
      });
      t.is(problem === undefined, inside);
    }),
  );
});

test('whatever the environment holds, only `finish` throws, and only its one Error', (t) => {
  fc.assert(
    fc.property(fc.option(unicodeText(), { nil: undefined }), (X) => {
      const problem = problemOf({ X }, (reader) => {
        reader.string('X', { pattern: '^a+$' });
        reader.integer('X', { min: 1, max: 9 });
        reader.flag('X');
        reader.list('X', 'a,b');
        reader.pairs('X', { fallback: '', values: ['a'] });
        reader.key('X', 32);
      });
      t.true(problem === undefined || problem.startsWith('configuration: '));
    }),
  );
});

test('a list drops empty items, and a key must have its exact length', (t) => {
  fc.assert(
    fc.property(fc.string(), fc.uint8Array({ minLength: 32, maxLength: 32 }), (list, key) => {
      const reader = new ConfigReader({ LIST: list, KEY: Buffer.from(key).toString('base64') });
      t.false(reader.list('LIST', '').includes(''));
      t.deepEqual(reader.key('KEY', 32), Buffer.from(key));
      reader.finish();
    }),
  );
});

const reads: Readonly<Record<string, (reader: ConfigReader) => unknown>> = {
  string: (reader) => reader.string('X'),
  region: (reader) => reader.string('X', { pattern: '^[a-z]+-[a-z]+$' }),
  integer: (reader) => reader.integer('X', { min: 1, max: 10 }),
  flag: (reader) => reader.flag('X'),
  key: (reader) => reader.key('X', 4),
  secrets: (reader) => reader.secrets('X', 2),
  pairs: (reader) => reader.pairs('X', { fallback: '', values: ['one', 'two'] }),
};

const refused = test.macro({
  exec(t, kind: string, value: string | undefined, message: string) {
    t.is(
      problemOf({ X: value }, (reader) => reads[kind]?.(reader)),
      `configuration: X ${message}`,
    );
  },
  title: (_given, kind: string, value?: string) => `${kind} refuses ${JSON.stringify(value)}`,
});

test(refused, 'string', undefined, 'is not set');
test(refused, 'string', '', 'is not set');
test(refused, 'region', 'somewhere', 'does not match ^[a-z]+-[a-z]+$');
test(refused, 'integer', undefined, 'is not set');
test(refused, 'integer', '', 'is not set');
test(refused, 'integer', 'ten', 'must be an integer from 1 to 10');
test(refused, 'integer', '1.5', 'must be an integer from 1 to 10');
test(refused, 'integer', 'Infinity', 'must be an integer from 1 to 10');
test(refused, 'integer', '11', 'must be an integer from 1 to 10');
test(refused, 'flag', 'yes', 'must be true or false');
test(refused, 'key', 'AAAA', 'must be 4 bytes in base64');
for (const value of [undefined, '', 'short', `${'x'.repeat(32)},short`, 'x'.repeat(31)]) {
  test(refused, 'secrets', value, 'must be 1 to 2 secrets of at least 32 characters');
}
for (const value of ['a', 'a=', '=one', 'a=three', 'a=one=two', 'a=one,b', '=']) {
  test(refused, 'pairs', value, 'must be pairs <name>=<value> with the values one, two');
}
test(refused, 'key', undefined, 'must be 4 bytes in base64');

test('a control node without settings names all that it needs in one sentence', (t) => {
  const error = t.throws(() => readControlConfig({}));
  for (const name of [
    'REDIS_URL',
    'CLUSTER_ID',
    'CLUSTER_SECRET',
    'ENCRYPTION_KEY',
    'REGION',
    'CONTROL_PORT',
    'CONTROL_INTERNAL_PORT',
    'PUBLIC_BASE_URL',
    'SIGNING_KEYS',
  ]) {
    t.true(error.message.includes(name), name);
  }
  t.false(error.message.includes('\n'));
});

test('pairs are separated by commas', (t) => {
  const options = { fallback: 'a:b/c=one,d=two', values: ['one', 'two'] };
  const expected = [
    ['a:b/c', 'one'],
    ['d', 'two'],
  ];
  t.deepEqual(new ConfigReader({}).pairs('X', options), expected);
  t.deepEqual(new ConfigReader({ X: 'd=two' }).pairs('X', options), expected.slice(1));
  t.deepEqual(new ConfigReader({ X: '' }).pairs('X', options), []);
});

test('secrets are separated by commas and limited in number', (t) => {
  const [a, b] = ['a'.repeat(32), 'b'.repeat(40)];
  t.deepEqual(new ConfigReader({ X: `${a},${b}` }).secrets('X', 2), [a, b]);
  const three = { X: [a, b, a].join(',') };
  t.regex(problemOf(three, (reader) => reader.secrets('X', 2)) ?? '', /1 to 2 secrets/u);
});

test('the message about a wrong secret does not contain it', (t) => {
  const CLUSTER_SECRET = 'too-short-a-secret';
  const ENCRYPTION_KEY = Buffer.from('a short key').toString('base64');
  const error = t.throws(() => readControlConfig({ CLUSTER_SECRET, ENCRYPTION_KEY }));
  t.true(error.message.includes('CLUSTER_SECRET does not match'));
  t.false(error.message.includes(CLUSTER_SECRET));
  t.false(error.message.includes(ENCRYPTION_KEY));
});
