/* The headers in the record of an object, also in records that an earlier version has written. */
import test from 'ava';
import {
  decodeRecord,
  encodeRecord,
  type ObjectRecord,
} from '../../../../../agent/edge/s3/store/object-record.ts';
import { decodeHeaders, encodeHeaders } from '../../../../../agent/edge/s3/store/stored-headers.ts';

const KEPT = {
  'x-amz-meta-a': 'b: c',
  'x-amz-meta-empty': '',
  'cache-control': 'no-cache',
  'content-disposition': 'attachment',
  'content-encoding': 'gzip',
  'content-language': 'de',
  expires: 'never',
};
/** An earlier version stored these: the first as two lines. */
const BROKEN = {
  'x-amz-meta-b:c\ncontent-security-policy': 'script-src *',
  'x-amz-meta-two words': 'x',
  'x-amz-meta-bell': '\u0007',
};

test('stored headers are read as they were given', (t) => {
  t.deepEqual(decodeHeaders(encodeHeaders(KEPT), 'latin1'), KEPT);
  t.deepEqual(decodeHeaders(Buffer.from(JSON.stringify(KEPT)), 'utf8'), KEPT);
});

test('a record takes a byte for each byte of a value, and is read whichever version wrote it', (t) => {
  const file = { inode: 1n, sizeBytes: 3, mtimeNs: 5n, ctimeNs: 7n };
  const plain: ObjectRecord = {
    ...{ md5: Buffer.alloc(16, 1), partCount: 0, contentType: 'a/b', headers: {} },
    checksum: undefined,
  };
  const summed: ObjectRecord = {
    ...plain,
    checksum: { algorithm: 'crc32', type: 'FULL_OBJECT', value: 'AAAAAA==' },
  };
  const value = Buffer.from('ж é').toString('latin1');
  const headers = { 'x-amz-meta-a': value };
  for (const record of [plain, summed]) {
    const bare = encodeRecord(record, file);
    for (const each of [headers, KEPT]) {
      const described = { ...record, headers: each };
      t.deepEqual(decodeRecord(encodeRecord(described, file), file), described);
    }
    t.is(encodeRecord({ ...record, headers }, file).length, bare.length + '\n-a:'.length + 5);
    const former = Buffer.concat([bare, Buffer.from(`\n-a:${value}`)]);
    t.deepEqual(decodeRecord(former, file), { ...record, headers });
    const later = Buffer.from(bare);
    later[0] = 5;
    t.is(decodeRecord(later, file), undefined);
  }
});

test('nothing else that an earlier version has stored becomes a header of an answer', (t) => {
  const found = decodeHeaders(encodeHeaders({ ...KEPT, ...BROKEN }), 'latin1');
  t.deepEqual(found, { ...KEPT, 'x-amz-meta-b': 'c' });
  const more = { ...BROKEN, 'set-cookie': 'a=b', 'content-length': '1' };
  t.deepEqual(decodeHeaders(Buffer.from(JSON.stringify({ ...KEPT, ...more })), 'utf8'), KEPT);
});
