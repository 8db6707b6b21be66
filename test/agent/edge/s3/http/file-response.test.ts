import test from 'ava';
import { stat, utimes, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { factsOf, respondWithFile } from '../../../../../agent/edge/s3/http/file-response.ts';
import { temporaryDirectory } from '../../../../helpers/temporary.ts';

const etag = '"0123456789abcdef0123456789abcdef"';
const date = 'Sun, 06 Nov 1994 08:49:37 GMT';
const before = 'Sun, 06 Nov 1994 08:49:36 GMT';
const after = 'Sun, 06 Nov 1994 08:49:38 GMT';
const file = {
  sizeBytes: 10,
  etag,
  modifiedAt: new Date('1994-11-06T08:49:37.500Z'),
  contentType: 'text/plain',
};
const other = '"other"';
const range = 'bytes=2-4';

type Headers = Record<string, string>;

const answers = test.macro({
  exec(t, headers: Headers, status: number) {
    t.is<number, number>(respondWithFile(file, 'GET', headers).status, status);
  },
  title: (_given, headers, status: number) => `${JSON.stringify(headers)}: ${status}`,
});

test(answers, {}, 200);
test(answers, { 'if-match': etag }, 200);
test(answers, { 'if-match': '*' }, 200);
test(answers, { 'if-match': `${other}, ${etag}` }, 200);
test(answers, { 'if-match': other }, 412);
test(answers, { 'if-match': `W/${etag}` }, 412);
test(answers, { 'if-match': 'garbled' }, 412);
test(answers, { 'if-unmodified-since': date }, 200);
test(answers, { 'if-unmodified-since': after }, 200);
test(answers, { 'if-unmodified-since': before }, 412);
test(answers, { 'if-unmodified-since': 'Sunday, 06-Nov-94 08:49:36 GMT' }, 412);
test(answers, { 'if-unmodified-since': 'Sun Nov  6 08:49:36 1994' }, 412);
test(answers, { 'if-unmodified-since': '1994-11-06' }, 200);
test(answers, { 'if-none-match': etag }, 304);
test(answers, { 'if-none-match': `W/${etag}` }, 304);
test(answers, { 'if-none-match': '*' }, 304);
test(answers, { 'if-none-match': other }, 200);
test(answers, { 'if-modified-since': date }, 304);
test(answers, { 'if-modified-since': after }, 304);
test(answers, { 'if-modified-since': before }, 200);
test(answers, { 'if-modified-since': 'yesterday' }, 200);
// RFC 9110, section 13.2.2: tags count before dates, If-Match before If-None-Match, Range last.
test(answers, { 'if-match': etag, 'if-unmodified-since': before }, 200);
test(answers, { 'if-match': other, 'if-none-match': etag }, 412);
test(answers, { 'if-none-match': other, 'if-modified-since': after }, 200);
test(answers, { 'if-none-match': etag, 'if-modified-since': before }, 304);
test(answers, { 'if-match': etag, 'if-none-match': etag }, 304);
test(answers, { 'if-unmodified-since': before, 'if-none-match': etag }, 412);
test(answers, { 'if-none-match': etag, range }, 304);
test(answers, { 'if-match': other, range: 'bytes=99-' }, 412);
test(answers, { 'if-match': etag, range }, 206);
test(answers, { range: 'bytes=99-' }, 416);
test(answers, { range: 'lines=1-2' }, 200);
test(answers, { range, 'if-range': etag }, 206);
test(answers, { range, 'if-range': `W/${etag}` }, 200);
test(answers, { range, 'if-range': other }, 200);
test(answers, { range, 'if-range': date }, 206);
test(answers, { range, 'if-range': after }, 200);
test(answers, { range, 'if-range': before }, 200);
test(answers, { range: 'bytes=99-', 'if-range': other }, 200);

test('a date is no strong validator while its second lasts', (t) => {
  const headers = { range, 'if-range': date };
  t.is(
    respondWithFile(file, 'GET', headers, { now: new Date('1994-11-06T08:49:37.900Z') }).status,
    200,
  );
  t.is(
    respondWithFile(file, 'GET', headers, { now: new Date('1994-11-06T08:49:38.000Z') }).status,
    206,
  );
});

test('a time in the future is told as the present', (t) => {
  const now = new Date('1990-01-01T00:00:00Z');
  const { headers } = respondWithFile(file, 'GET', { range, 'if-range': date }, { now });
  t.is(headers['last-modified'], 'Mon, 01 Jan 1990 00:00:00 GMT');
  t.is(headers['content-length'], '10');
});

test('the body of HEAD is empty, its headers are those of the whole file', (t) => {
  const get = respondWithFile(file, 'GET', {});
  t.deepEqual(respondWithFile(file, 'HEAD', { range }), { ...get, body: [] });
  t.is(respondWithFile(file, 'HEAD', { 'if-none-match': etag }).status, 304);
});

test('what is not sent is not described', (t) => {
  const notModified = respondWithFile(file, 'GET', { 'if-none-match': etag });
  t.deepEqual(notModified.headers, { etag, 'last-modified': date });
  const unsatisfiable = respondWithFile(file, 'GET', { range: 'bytes=10-' });
  t.is(unsatisfiable.headers['content-range'], 'bytes */10');
  t.deepEqual(unsatisfiable.body, []);
});

test('one range is told in the headers, several in the parts', (t) => {
  const one = respondWithFile(file, 'GET', { range });
  t.like(one.headers, { 'content-range': 'bytes 2-4/10', 'content-length': '3' });
  t.deepEqual(one.body, [{ start: 2, end: 4 }]);
  const several = respondWithFile(file, 'GET', { range: 'bytes=0-1,8-9' });
  t.is(several.headers['content-range'], undefined);
  t.regex(several.headers['content-type'] ?? '', /^multipart\/byteranges; boundary=[\w-]+$/u);
  const texts = several.body.filter((part) => typeof part === 'string');
  t.is(Number(several.headers['content-length']), texts.join('').length + 4);
});

test('an empty file is whole, and no part of it can be had', (t) => {
  const empty = { ...file, sizeBytes: 0 };
  t.like(respondWithFile(empty, 'GET', {}), { status: 200, body: [] });
  t.like(respondWithFile(empty, 'GET', { range: 'bytes=0-' }), { status: 416, body: [] });
});

test('the tag changes with content, time of change and file, and with nothing else', async (t) => {
  await using place = await temporaryDirectory();
  const path = join(place.path, 'file');
  const tagOf = async (): Promise<string> =>
    factsOf(await stat(path, { bigint: true }), 'text/plain').etag;
  await writeFile(path, 'one');
  const first = await tagOf();
  t.regex(first, /^"[0-9a-f]{32}"$/u);
  t.is(await tagOf(), first);
  const { mtime } = await stat(path);
  await writeFile(path, 'two');
  await utimes(path, mtime, mtime); // A time set back does not hide the change.
  t.not(await tagOf(), first);
});
