import test from 'ava';
import * as fc from '../helpers/fast-check.ts';
import { diskStatuses } from '../../shared/schemas/disk.ts';
import { type DiskManifest, parseManifest } from '../../shared/schemas/disk-manifest.ts';
import { unicodeText } from '../helpers/unicode-text.ts';

const time = fc
  .date({ min: new Date('2000-01-01'), max: new Date('2100-01-01'), noInvalidDate: true })
  .map((date) => date.toISOString());
const text = unicodeText({ maxLength: 40 });
const id = fc.integer({ min: 0, max: 0xffff_ffff });
const uid = fc.integer({ min: 0, max: 4_294_967_294 });

const user = fc.record(
  {
    type: fc.constantFrom('token', 'cloudsts', 'awssts'),
    identifier: text,
    createdAt: time,
    principal: text,
    nickname: text,
    tokenSuffix: text,
    sealedToken: text,
  },
  { requiredKeys: ['type', 'identifier', 'createdAt'], noNullPrototype: true },
);
const manifest: fc.Arbitrary<DiskManifest> = fc
  .record(
    {
      id: id.map((value) => `dsk-${value.toString(16).padStart(16, '0')}`),
      accountId: id.map((value) => `acct-${value.toString(16).padStart(16, '0')}`),
      organization: text,
      region: text,
      name: fc.stringMatching(/^[a-zA-Z0-9_-]{1,100}$/u),
      status: fc.constantFrom(...diskStatuses),
      createdAt: time,
      rootAttrs: fc.record(
        { uid, gid: uid, mode: fc.integer({ min: 0, max: 0o777 }) },
        { requiredKeys: [], noNullPrototype: true },
      ),
      allowedIps: fc.array(text),
      allowedOrigins: fc.array(text),
      users: fc.array(user),
      revision: fc.integer({ min: 1 }),
    },
    {
      requiredKeys: [
        'id',
        'accountId',
        'organization',
        'region',
        'name',
        'status',
        'createdAt',
        'allowedIps',
        'users',
        'revision',
      ],
      noNullPrototype: true,
    },
  )
  .map((disk) => ({ version: 1, disk }));

test('a manifest is read as it was written', (t) => {
  fc.assert(
    fc.property(manifest, (value) => {
      t.deepEqual(parseManifest(JSON.stringify(value)), value);
    }),
  );
  t.pass();
});

test('a manifest that was cut off is refused', (t) => {
  fc.assert(
    fc.property(manifest, fc.nat(), (value, at) => {
      const whole = JSON.stringify(value);
      t.throws(() => parseManifest(whole.slice(0, at % whole.length)), { instanceOf: Error });
    }),
  );
});

test('a manifest with nonsense in a field is either read or refused with the documented error', (t) => {
  const required = fc.constantFrom('id', 'accountId', 'name', 'status', 'users', 'revision');
  fc.assert(
    fc.property(manifest, required, fc.jsonValue(), (value, field, nonsense) => {
      const changed = JSON.stringify({ ...value, disk: { ...value.disk, [field]: nonsense } });
      try {
        parseManifest(changed);
      } catch (error) {
        t.true(error instanceof Error);
      }
    }),
  );
  t.pass();
});

test('data that is not a manifest is refused', (t) => {
  fc.assert(
    fc.property(fc.oneof(fc.string(), fc.json()), (value) => {
      t.throws(() => parseManifest(value), { instanceOf: Error });
    }),
  );
});

const disk = {
  id: 'dsk-0123456789abcdef',
  accountId: 'acct-0123456789abcdef',
  organization: 'o',
  region: 'aws-us-east-1',
  name: 'n',
  status: 'available',
  createdAt: '2026-01-01T00:00:00.000Z',
  allowedIps: [],
  users: [],
  revision: 1,
};

test('the smallest manifest is read', (t) => {
  t.notThrows(() => parseManifest(JSON.stringify({ version: 1, disk })));
});

for (const [name, change] of Object.entries({
  'another version': { version: 2 },
  'a path as id': { disk: { ...disk, id: '../../etc' } },
  'a name with a slash': { disk: { ...disk, name: 'a/b' } },
  'an unknown status': { disk: { ...disk, status: 'new' } },
  'revision 0': { disk: { ...disk, revision: 0 } },
  'a set-uid mode': { disk: { ...disk, rootAttrs: { mode: 0o4755 } } },
  'an invalid time': { disk: { ...disk, createdAt: 'yesterday' } },
  'no users': { disk: { ...disk, users: undefined } },
})) {
  test(`refused: a manifest with ${name}`, (t) => {
    const value = JSON.stringify({ version: 1, disk, ...change });
    t.throws(() => parseManifest(value), { message: /^manifest/u });
  });
}
