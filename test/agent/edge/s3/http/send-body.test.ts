import test from 'ava';
import { open, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { PassThrough, Writable } from 'node:stream';
import { endWithBody, sendBody } from '../../../../../agent/edge/s3/http/send-body.ts';
import { temporaryDirectory } from '../../../../helpers/temporary.ts';

const BUFFER_BYTES = 7;
const content = Buffer.from(Array.from({ length: 1000 }, (_, index) => index % 251));

test('texts and ranges arrive in order, whatever the size of the buffers', async (t) => {
  await using place = await temporaryDirectory();
  const path = join(place.path, 'file');
  await writeFile(path, content);
  await using file = await open(path);
  const body = ['<', { start: 0, end: 999 }, '|', { start: 5, end: 5 }, { start: 990, end: 999 }];
  const arrived: Buffer[] = [];
  const to = new Writable({
    write(chunk: Buffer, _encoding, done) {
      arrived.push(Buffer.from(chunk)); // A socket does the same: it is done with the bytes then.
      done();
    },
  });
  let sent = 0;
  await sendBody(file, body, to, (bytes) => void (sent += bytes), BUFFER_BYTES);
  const parts = [content, content.subarray(5, 6), content.subarray(990)];
  const [whole = content, one = content, tail = content] = parts;
  const expected = Buffer.concat([Buffer.from('<'), whole, Buffer.from('|'), one, tail]);
  t.deepEqual(Buffer.concat(arrived), expected);
  t.is(sent, expected.length);
});

test('an answer ends with texts and ranges of a content that was read already', async (t) => {
  const body = ['<', { start: 0, end: 999 }, '|', { start: 990, end: 999 }];
  const arrived = new PassThrough();
  const sent = await endWithBody(content, body, arrived);
  const expected = Buffer.concat([
    Buffer.from('<'),
    content,
    Buffer.from('|'),
    content.subarray(990),
  ]);
  t.deepEqual(Buffer.concat(await arrived.toArray()), expected);
  t.is(sent, expected.length);
});

test('an answer that ends with its connection fails', async (t) => {
  const whole = [{ start: 0, end: 999 }];
  const stuck = new Writable({ write: () => undefined });
  const sending = endWithBody(content, whole, stuck);
  stuck.destroy();
  await t.throwsAsync(sending, { message: 'the connection ended' });
  await t.throwsAsync(endWithBody(content, whole, stuck), { message: 'the connection ended' });
});

test('a file that ends early is an error, not a short body', async (t) => {
  await using place = await temporaryDirectory();
  const path = join(place.path, 'file');
  await writeFile(path, content);
  await using file = await open(path);
  await truncate(path, 100);
  const to = new PassThrough().resume();
  const sending = sendBody(file, [{ start: 0, end: 999 }], to, () => undefined, BUFFER_BYTES);
  await t.throwsAsync(sending, { message: /truncated/u });
});

test('nothing is read ahead of a reader that takes nothing, and its end ends the work', async (t) => {
  await using place = await temporaryDirectory();
  const path = join(place.path, 'file');
  await writeFile(path, content);
  await using file = await open(path);
  let sent = 0;
  const stuck = new Writable({ write: () => undefined });
  const whole = [{ start: 0, end: 999 }];
  const sending = sendBody(file, whole, stuck, (bytes) => void (sent += bytes), BUFFER_BYTES);
  setImmediate(() => stuck.destroy());
  await t.throwsAsync(sending);
  t.is(sent, 0);
});
