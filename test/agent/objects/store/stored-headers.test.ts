/* The headers in the record of an object, also in records that an earlier version has written. */
import test from 'ava';
import { decodeHeaders, encodeHeaders } from '../../../../agent/objects/store/stored-headers.ts';

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
  t.deepEqual(decodeHeaders(encodeHeaders(KEPT)), KEPT);
  t.deepEqual(decodeHeaders(Buffer.from(JSON.stringify(KEPT))), KEPT);
});

test('nothing else that an earlier version has stored becomes a header of an answer', (t) => {
  const found = decodeHeaders(encodeHeaders({ ...KEPT, ...BROKEN }));
  t.deepEqual(found, { ...KEPT, 'x-amz-meta-b': 'c' });
  const more = { ...BROKEN, 'set-cookie': 'a=b', 'content-length': '1' };
  t.deepEqual(decodeHeaders(Buffer.from(JSON.stringify({ ...KEPT, ...more }))), KEPT);
});
