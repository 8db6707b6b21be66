import test from 'ava';
import * as fc from '../helpers/fast-check.ts';
import Type from 'typebox';
import { AppError } from '../../shared/errors.ts';
import { PageQuery } from '../../shared/schemas/common.ts';
import { CreateDisk, DiskName } from '../../shared/schemas/disk.ts';
import { DiskUserInput } from '../../shared/schemas/disk-user.ts';
import { compile } from '../../shared/validate.ts';
import { unicodeText } from '../helpers/unicode-text.ts';

const check = compile(CreateDisk);

test('a name is accepted exactly when its characters and length are allowed', (t) => {
  const checkName = compile(Type.Object({ name: DiskName }));
  const name = fc.oneof(
    unicodeText({ maxLength: 110 }),
    fc.string({ unit: fc.constantFrom(...'aZ09_-'.split('')), maxLength: 110 }),
    fc.stringMatching(/^[a-zA-Z0-9_-]*\s?$/u),
  );
  fc.assert(
    fc.property(name, (value) => {
      const wanted = /^[a-zA-Z0-9_-]{1,100}$/u.test(value) && !value.endsWith('\n');
      if (wanted) t.is(checkName({ name: value }, 'body').name, value);
      else t.throws(() => checkName({ name: value }, 'body'), { code: 'bad_request' });
    }),
    { numRuns: 300 },
  );
});

test('any input is either returned or refused with bad_request', (t) => {
  for (const schema of [CreateDisk, DiskUserInput]) {
    const checkIt = compile(schema);
    fc.assert(
      fc.property(fc.anything(), (value) => {
        try {
          t.is<unknown, unknown>(checkIt(value, 'body'), value);
        } catch (error) {
          t.true(error instanceof AppError && error.code === 'bad_request');
        }
      }),
    );
  }
});

test('numbers in a query are read from text; nothing else is converted', (t) => {
  const checkQuery = compile(PageQuery, { coerce: true });
  fc.assert(
    fc.property(fc.integer({ min: 1 }), fc.string({ minLength: 1 }), (limit, cursor) => {
      t.deepEqual(checkQuery({ limit: String(limit), cursor, other: '1' }, 'query'), {
        limit,
        cursor,
        other: '1',
      } as object);
    }),
  );
});

test('integers and booleans in a query are written as JSON writes them', (t) => {
  const checkQuery = compile(Type.Object({ n: Type.Integer(), is: Type.Boolean() }), {
    coerce: true,
  });
  t.deepEqual(checkQuery({ n: '-7', is: 'false' }, 'query'), { n: -7, is: false });
  for (const n of ['', '1e1', '0x10', ' 7', '+7', '07', '7.0', '1,5', ['1', '2']]) {
    t.throws(() => checkQuery({ n, is: 'true' }, 'query'), { code: 'bad_request' });
  }
  for (const is of ['', '1', 'TRUE', 'yes']) {
    t.throws(() => checkQuery({ n: '1', is }, 'query'), { code: 'bad_request' });
  }
});

const message = test.macro({
  exec(t, input: unknown, expected: string) {
    const error = t.throws(() => check(input, 'body'), { instanceOf: AppError });
    t.is(error.message, expected);
  },
  title: (_given, input: unknown, expected: string) =>
    `says what is wrong with ${JSON.stringify(input)}: ${expected}`,
});

test(message, [], 'body must be object');
test(message, {}, "body must have required property 'name'");
test(message, { name: 7 }, 'body: name must be string');
test(message, { name: 'n', allowedIps: ['ok', 7] }, 'body: allowedIps.1 must be string');
test(
  message,
  { name: 'n', authMethods: [{}] },
  "body: authMethods.0 must have required property 'type'",
);
test(message, { name: 'n', rootAttrs: { uid: -1 } }, 'body: rootAttrs.uid must be >= 0');
test(message, { name: 'n', authMethods: [{ type: 'x' }] }, 'body: authMethods.0 has no known type');

const checkChoice = compile(
  Type.Object({
    at: Type.Union([
      Type.Null(),
      Type.String({ pattern: '^/' }),
      Type.Object({ wait: Type.Optional(Type.Integer({ minimum: 1 })) }),
    ]),
  }),
);

for (const [at, expected] of [
  ['x', 'body: at must match pattern "^/"'],
  [{ wait: 0 }, 'body: at.wait must be >= 1'],
  [{ wait: '1' }, 'body: at.wait must be integer'],
  [7, 'body: at must be null'],
] as const) {
  test(`says what is wrong with the alternative that was meant: ${JSON.stringify(at)}`, (t) => {
    t.throws(() => checkChoice({ at }, 'body'), { message: expected });
  });
}
