/* Requests for grep: nothing of it reaches a host unless it is valid. */
import anyTest, { type TestFn } from 'ava';
import type { ApiClient } from '../../../helpers/api.ts';
import { createDisk, missingDiskId } from '../../../helpers/disks.ts';
import { grep, postGrep } from '../../../helpers/greps.ts';
import { Stack } from '../../../helpers/stack.ts';
import { waitFor } from '../../../helpers/wait.ts';

const test = anyTest as TestFn<{ stack: Stack; api: ApiClient; diskId: string }>;

test.before(async (t) => {
  t.context.stack = await Stack.start();
  t.context.api = await t.context.stack.newClient();
  t.context.diskId = (await createDisk(t.context.api)).id;
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

const refused = test.macro<[input: Record<string, unknown>, message: RegExp]>({
  async exec(t, input, message) {
    const { api, diskId } = t.context;
    const { status, body } = await postGrep(api, diskId, { pattern: 'x', ...input });
    t.deepEqual([status, body.code], [400, 'bad_request']);
    t.regex(body.error, message);
  },
  title: (given = '') => `400: ${given}`,
});

test('no pattern', refused, { pattern: undefined }, /pattern/u);
test('an empty pattern', refused, { pattern: '' }, /pattern/u);
test('a pattern that is no text', refused, { pattern: 7 }, /pattern/u);
test('a pattern of more than 64 KiB', refused, { pattern: 'x'.repeat(65_537) }, /pattern/u);
test(
  'a pattern of more bytes than 64 KiB',
  refused,
  { pattern: 'é'.repeat(40_000) },
  /longer than/u,
);
test('a NUL in the pattern', refused, { pattern: 'a\0b' }, /NUL/u);
test('no directory', refused, { directory: undefined }, /directory/u);
test('a directory that is no text', refused, { directory: null }, /directory/u);
test('.. in the directory', refused, { directory: 'a/../b' }, /"\.\." segment/u);
test('.. alone', refused, { directory: '/..' }, /"\.\." segment/u);
test('. in the directory', refused, { directory: './a' }, /"\." segment/u);
test('an empty segment', refused, { directory: 'a//b' }, /empty segment/u);
test('a NUL in the directory', refused, { directory: 'a\0' }, /NUL/u);
test('a name too long', refused, { directory: 'x'.repeat(256) }, /too long/u);
test('a path too long', refused, { directory: 'x/'.repeat(600) }, /directory/u);
test('recursive as text', refused, { recursive: 'yes' }, /recursive/u);
for (const field of ['maxDurationSeconds', 'concurrency', 'maxResults']) {
  test(`${field} 0`, refused, { [field]: 0 }, new RegExp(field, 'u'));
  test(`${field} below 0`, refused, { [field]: -1 }, new RegExp(field, 'u'));
  test(`${field} with a fraction`, refused, { [field]: 1.5 }, new RegExp(field, 'u'));
  test(`${field} as text`, refused, { [field]: '5' }, new RegExp(field, 'u'));
}

test('values above their maximum count as the maximum', async (t) => {
  const { api, diskId } = t.context;
  for (const field of ['maxDurationSeconds', 'concurrency', 'maxResults']) {
    const result = await grep(api, diskId, { pattern: 'x', [field]: 1_000_000 });
    t.is(result.stoppedReason, 'completed');
  }
});

test('the root directory has several spellings, and unknown fields are ignored', async (t) => {
  const { api, diskId } = t.context;
  for (const directory of ['', '/', '//']) {
    const result = await grep(api, diskId, { directory, pattern: 'x', caseSensitive: false });
    t.deepEqual([result.stoppedReason, result.matches, result.filesScanned], ['completed', [], 0]);
  }
});

test('404 for a disk that is missing or of another account', async (t) => {
  const { api, diskId, stack } = t.context;
  const missing = await postGrep(api, missingDiskId, { pattern: 'x' });
  const foreign = await postGrep(await stack.newClient(), diskId, { pattern: 'x' });
  t.deepEqual([missing.status, missing.body.code], [404, 'not_found']);
  t.deepEqual([foreign.status, foreign.body.code], [404, 'not_found']);
});

test('the request log has the number of matches, but not the pattern', async (t) => {
  const { api, diskId, stack } = t.context;
  const headers = { 'x-request-id': 'grep-in-the-log' };
  const input = { directory: '', pattern: 'secret-pattern' };
  await api.call('POST', `/api/disks/${diskId}/grep`, input, headers);
  const event = await waitFor('the log', async () => {
    const log = await stack.controls[0]?.daemon.readLog();
    return log?.split('\n').find((line) => line.includes('"requestId":"grep-in-the-log"'));
  });
  t.like(JSON.parse(event), { diskId, matches: 0, stoppedReason: 'completed' });
  t.false(event.includes('secret-pattern'));
});
