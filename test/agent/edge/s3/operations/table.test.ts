import test from 'ava';
import { readHeaders } from '../../../../../agent/edge/s3/http/request-headers.ts';
import { readTarget } from '../../../../../agent/edge/s3/http/target.ts';
import {
  acceptOperation,
  addsToDisk,
  type NamedOperation,
  selectOperation,
} from '../../../../../agent/edge/s3/operations/table.ts';
import { S3Error } from '../../../../../agent/edge/s3/protocol/errors.ts';

function select(method: string, url: string, rawHeaders: string[] = []): NamedOperation {
  const headers: Record<string, string> = {};
  for (let index = 0; index + 1 < rawHeaders.length; index += 2) {
    headers[rawHeaders[index]!.toLowerCase()] = rawHeaders[index + 1]!;
  }
  const target = readTarget(url);
  const read = readHeaders({ headers, rawHeaders }, target.query);
  return acceptOperation(selectOperation(method, target, read), target, read);
}

/** The operation that a request is taken for, or the code with which it is refused. */
function find(method: string, url: string, rawHeaders: string[] = []): string {
  try {
    return select(method, url, rawHeaders).name;
  } catch (error) {
    if (error instanceof S3Error) return error.code;
    throw error;
  }
}

test('a put with the parameters of another operation is not a put', (t) => {
  t.is(find('PUT', '/b/k'), 'PutObject');
  t.is(find('PUT', '/b/k?x-id=PutObject'), 'PutObject');
  for (const query of ['partNumber=1', 'uploads', 'tagging', 'versionId=x', 'anything', 'acl']) {
    t.is(find('PUT', `/b/k?${query}`), 'NotImplemented', query);
  }
});

test('every sub-resource of a bucket is refused, known or not', (t) => {
  t.is(find('PUT', '/b'), 'CreateBucket');
  for (const flag of ['versioning', 'location', 'abac', 'cors', 'policy', 'future-thing']) {
    t.is(find('PUT', `/b?${flag}`), 'NotImplemented', flag);
  }
});

test('a header that an operation does not obey is refused, wherever it comes from', (t) => {
  t.is(find('PUT', '/b/k', ['X-Amz-Tagging', 'a=b']), 'NotImplemented');
  t.is(find('PUT', '/b/k?x-amz-tagging=a%3Db'), 'NotImplemented');
  t.is(find('PUT', '/b/k', ['x-amz-future', '1']), 'NotImplemented');
  t.is(find('PUT', '/b/k', ['Content-Range', 'bytes 0-1/2']), 'NotImplemented');
  t.is(find('DELETE', '/b/k', ['Range', 'bytes=0-1']), 'NotImplemented');
  t.is(find('PUT', '/b/k', ['Traceparent', '00-1-1-00', 'Via', '1.1 x', 'DNT', '1']), 'PutObject');
});

test('a header whose value is the only one that is done passes with that value alone', (t) => {
  t.is(find('PUT', '/b/k', ['x-amz-acl', 'private']), 'PutObject');
  t.is(find('PUT', '/b/k', ['x-amz-acl', 'public-read']), 'NotImplemented');
  t.is(find('PUT', '/b/k', ['content-encoding', 'gzip']), 'PutObject');
  t.is(find('PUT', '/b/k?uploadId=1&partNumber=1', ['content-encoding', 'gzip']), 'NotImplemented');
});

test('what is said twice is refused, unless it is a list', (t) => {
  t.is(find('GET', '/b?list-type=2&prefix=a&prefix=b'), 'InvalidArgument');
  t.is(find('PUT', '/b/k', ['x-amz-acl', 'private', 'X-Amz-Acl', 'private']), 'InvalidArgument');
  t.is(find('PUT', '/b/k?x-amz-acl=private', ['x-amz-acl', 'private']), 'InvalidArgument');
  t.is(find('PUT', '/b/k', ['x-amz-meta-a', '1', 'x-amz-meta-a', '2']), 'PutObject');
});

test('a parameter stands for a header only if its name can be that of one', (t) => {
  t.is(find('PUT', '/b/k?X-Amz-Meta-a!b=1'), 'PutObject');
  const names = ['x-amz-meta-a:b%0Acontent-security-policy', 'x-amz-meta-a%0Aset-cookie'];
  for (const name of [...names, 'x-amz-meta-a%20b', 'x-amz-meta-%C3%A9', 'x-amz-meta-a%3A']) {
    t.is(find('PUT', `/b/k?${name}=script-src%20*`), 'InvalidArgument', name);
  }
});

test('a flag whose value asks for something else is refused', (t) => {
  t.is(find('GET', '/b?list-type=2'), 'ListObjectsV2');
  for (const value of ['=1', '=3', '=', '']) {
    t.is(find('GET', `/b?list-type${value}`), 'InvalidArgument', value);
  }
  for (const value of ['=true', '=', '']) t.is(find('PUT', `/b/k?append${value}`), 'AppendObject');
  for (const value of ['=false', '=0']) t.is(find('PUT', `/b/k?append${value}`), 'InvalidArgument');
});

function adds(method: string, url: string): boolean {
  return addsToDisk(method, select(method, url));
}

test('deleting adds nothing to a disk, whatever its method is', (t) => {
  for (const [method, url] of [
    ['POST', '/b?delete'],
    ['DELETE', '/b/k'],
    ['DELETE', '/b/k?uploadId=1'],
    ['GET', '/b/k'],
  ] as const) {
    t.false(adds(method, url), `${method} ${url}`);
  }
  for (const [method, url] of [
    ['POST', '/b'],
    ['PUT', '/b/k'],
    ['POST', '/b/k?uploads'],
    ['POST', '/b/k?uploadId=1'],
  ] as const) {
    t.true(adds(method, url), `${method} ${url}`);
  }
});
