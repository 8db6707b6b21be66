/* The file of the audit log, on storage that fails or hangs. */
import { execFile } from 'node:child_process';
import { createReadStream } from 'node:fs';
import { appendFile, mkdir, readFile, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { text } from 'node:stream/consumers';
import { promisify } from 'node:util';
import test from 'ava';
import { AuditFile } from '../../../control/http/audit-file.ts';
import { HTTP_LIMITS } from '../../../control/http/limits.ts';
import { temporaryDirectory } from '../../helpers/temporary.ts';

test('an entry begins a line of its own after one that was cut off', async (t) => {
  await using directory = await temporaryDirectory();
  const path = join(directory.path, 'log', 'audit.log');
  const file = new AuditFile(path);
  await t.throwsAsync(file.append('lost'), { code: 'ENOENT' });
  await mkdir(dirname(path));
  await writeFile(path, 'by a former process\ncut o');
  await file.append('first');
  await file.append('second');
  t.is(await readFile(path, 'utf8'), 'by a former process\ncut o\nfirst\nsecond\n');
  await appendFile(path, 'cut o');
  await new AuditFile(path).append('third');
  t.true((await readFile(path, 'utf8')).endsWith('second\ncut o\nthird\n'));
});

test('while nothing is written, no more than so many lines wait', async (t) => {
  await using directory = await temporaryDirectory();
  const path = join(directory.path, 'audit.log');
  await promisify(execFile)('mkfifo', [path]); // To open it waits for a reader.
  const file = new AuditFile(path);
  const surplus = 5;
  const appended = Array.from({ length: HTTP_LIMITS.auditLinesWaitingMax + surplus }, (_, index) =>
    file.append(String(index)),
  );
  const settled = Promise.allSettled(appended);
  const lines = (await text(createReadStream(path))).split('\n').slice(0, -1);
  t.is(lines.length, HTTP_LIMITS.auditLinesWaitingMax);
  const lost = (await settled).filter(({ status }) => status === 'rejected');
  t.is(lost.length, surplus);
});
