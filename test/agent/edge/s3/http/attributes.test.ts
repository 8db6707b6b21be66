/* The headers of a request that are stored with its object. */
import test from 'ava';
import { readAttributes } from '../../../../../agent/edge/s3/http/attributes.ts';
import { readHeaders } from '../../../../../agent/edge/s3/http/request-headers.ts';
import { S3Error } from '../../../../../agent/edge/s3/protocol/errors.ts';
import { EDGE_LIMITS } from '../../../../../agent/edge/limits.ts';

/** Decodes a header as Node does: one character for each byte. */
const asHeader = (text: string): string => Buffer.from(text).toString('latin1');

const storedOf = (headers: Record<string, string>, query: Record<string, string> = {}) => {
  const parameters = new Map(Object.entries(query));
  return readAttributes({ headers: readHeaders({ headers, rawHeaders: [] }, parameters).values })
    .headers;
};

test('metadata counts by its bytes, whatever its letters are', (t) => {
  const most = asHeader('ж'.repeat((EDGE_LIMITS.objectMetadataBytesMax - 2) / 2));
  t.deepEqual(storedOf({ 'x-amz-meta-ab': most }), { 'x-amz-meta-ab': most });
  const error = t.throws(() => storedOf({ 'x-amz-meta-abc': most }), { instanceOf: S3Error });
  t.is(error.code, 'MetadataTooLarge');
});

test('metadata of a query is kept as that of a header', (t) => {
  for (const value of ['a b', 'é', 'ж', '日本']) {
    t.deepEqual(storedOf({}, { 'X-Amz-Meta-A': value }), { 'x-amz-meta-a': asHeader(value) });
  }
});

test('a value that no header can have is refused, wherever it comes from', (t) => {
  for (const headers of [{ 'content-encoding': 'gzip\u0001' }, { expires: 'a\nb' }]) {
    const error = t.throws(() => readAttributes({ headers }), { instanceOf: S3Error });
    t.is(error.code, 'InvalidArgument');
  }
  const error = t.throws(() => storedOf({}, { 'x-amz-meta-a': 'b\r' }), { instanceOf: S3Error });
  t.is(error.code, 'InvalidArgument');
});
