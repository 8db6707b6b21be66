import test from 'ava';
import * as fc from '../../helpers/fast-check.ts';
import type { TSchema } from 'typebox';
import { listIgnored } from '../../../control/http/middleware/ignored-fields.ts';
import { routes } from '../../../control/routes.ts';
import { HTTP_LIMITS } from '../../../control/http/limits.ts';
import { PageQuery } from '../../../shared/schemas/common.ts';
import { CreateDisk } from '../../../shared/schemas/disk.ts';
import { DiskUserInput } from '../../../shared/schemas/disk-user.ts';
import { RunMultiExec } from '../../../shared/schemas/exec.ts';
import { CreateSandbox } from '../../../shared/schemas/sandbox-input.ts';
import { unicodeText } from '../../helpers/unicode-text.ts';

const names = test.macro({
  exec(t, schema: TSchema, body: unknown, expected: string | undefined) {
    t.is(listIgnored({ body: schema }, { body }), expected);
  },
  title: (_given, _schema, body: unknown, expected: string | undefined) =>
    `ignored of ${JSON.stringify(body)}: ${expected ?? 'nothing'}`,
});

test(names, CreateSandbox, { name: 'a', mem_size_mib: 256, env: { ANY: 'x' } }, undefined);
test(names, CreateSandbox, { nmae: 'a', vcpus: 2 }, 'nmae, vcpus');
test(names, CreateSandbox, undefined, undefined);
test(names, CreateSandbox, [{ nmae: 'a' }], undefined);
test(names, CreateDisk, { name: 'a', rootAttrs: { mode: 1, mod: 1 } }, 'rootAttrs.mod');
test(names, DiskUserInput, { type: 'token', nickname: 'n' }, undefined);
test(
  'a field of another kind of user is ignored',
  names,
  DiskUserInput,
  { type: 'awssts', principal: 'p', nickname: 'n' },
  'nickname',
);
test(
  'fields in lists are named by their index',
  names,
  CreateDisk,
  {
    name: 'a',
    authMethods: [
      { type: 'token', nickname: 'n' },
      { type: 'token', nick: 'n' },
    ],
  },
  'authMethods[1].nick',
);
test(
  'keys that callers choose are not reported, unknown fields below them are',
  names,
  RunMultiExec,
  { command: 'c', disks: { a: 'dsk-1', 'data/in': { disk: 'dsk-1', readonly: true } } },
  'disks.data%2Fin.readonly',
);
test(
  'characters with a meaning in a header or in the list are encoded',
  names,
  CreateSandbox,
  { 'a\r\nset-cookie: b': 1, 'c, d.e[0]': 1, '\u20ac\ud800': 1 },
  'a%0D%0Aset-cookie%3A%20b, c%2C%20d%2Ee%5B0%5D, %E2%82%AC%EF%BF%BD',
);

test('unknown query parameters come first, with a question mark', (t) => {
  const schemas = { query: PageQuery, body: CreateSandbox };
  t.is(listIgnored(schemas, { query: { limit: '1', cursor: 'x' } }), undefined);
  const input = { query: { limt: '1', 'a,\n?b': '' }, body: { nmae: 'a' } };
  t.is(listIgnored(schemas, input), '?limt, ?a%2C%0A%3Fb, nmae');
  t.is(listIgnored(schemas, { query: { constructor: '' } }), '?constructor');
  t.is(listIgnored({}, { query: { wait: 'true' } }), '?wait');
  t.is(listIgnored({}, { body: { wait: true, a: { b: 1 } } }), 'wait, a');
});

test('the list is bounded, however many names there are and however long', (t) => {
  const many = Object.fromEntries(Array.from({ length: 1000 }, (_, i) => [`x${i}`, 1]));
  const listed = (listIgnored({ body: CreateSandbox }, { body: many }) ?? '').split(', ');
  t.deepEqual(listed.slice(-2), [`x${HTTP_LIMITS.ignoredFieldsListedMax - 1}`, '...']);
  const long = Object.fromEntries(['\u20ac', 'b', 'c'].map((c) => [c.repeat(100_000), 1]));
  const value = listIgnored({ body: CreateSandbox }, { body: long }) ?? '';
  t.is(value.split(', ')[1], 'b'.repeat(HTTP_LIMITS.ignoredFieldNameLengthMax));
});

test('the list is a valid header value for any body', (t) => {
  const field = fc.constantFrom('name', 'rootAttrs', 'disks', 'authMethods', 'type', 'mounts');
  const value = fc.letrec((tie) => ({
    any: fc.oneof(
      { depthSize: 'small' },
      fc.constantFrom('token', 7, null, true),
      fc.array(tie('any'), { maxLength: 3 }),
      fc.dictionary(fc.oneof(field, unicodeText()), tie('any'), { maxKeys: 5 }),
    ),
  })).any;
  const query = fc.dictionary(fc.oneof(field, unicodeText()), fc.string(), { maxKeys: 5 });
  fc.assert(
    fc.property(fc.constantFrom(...routes), query, value, (route, parameters, body) => {
      const list = listIgnored(route, { query: parameters, body });
      if (list === undefined) return;
      t.regex(list, /^[\w.%[\], ?-]*$/u);
      t.true(list.length < 2 * HTTP_LIMITS.ignoredFieldsListLengthMax);
      t.notThrows(() => new Headers({ 'x-ignored-fields': list }));
    }),
    { numRuns: 500 },
  );
});
