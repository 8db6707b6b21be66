/*
 * Commands in sandboxes while the storage of their output, or of the journal, fails for a moment.
 */
import { rm, writeFile } from 'node:fs/promises';
import test from 'ava';
import { interceptFailpoints } from '../../../../agent/system/failpoint.ts';
import { openExecs, spec } from '../../../helpers/played-execs.ts';
import { orderly, PlayedGuest, recordOf } from '../../../helpers/played-guest.ts';
import { waitFor } from '../../../helpers/wait.ts';

const { serial } = test; // Failpoints are of the process.

test.afterEach.always(() => interceptFailpoints(undefined));

serial('a command that there is no place for is refused, and none is listed', async (t) => {
  await using opened = await openExecs();
  const { execs, output } = opened;
  await writeFile(output, 'no directory');
  await t.throwsAsync(execs.begin(spec('one')), { code: 'EEXIST' });
  t.deepEqual(await execs.list(), []);
  await rm(output);
  for (const command of ['one', 'two']) await execs.begin(spec(command));
  t.deepEqual(
    (await execs.list()).map(({ status }) => status),
    ['running', 'running'],
    'it did not count towards the limit',
  );
});

serial('a command whose time is up is killed, also when the journal fails just then', async (t) => {
  await using opened = await openExecs();
  const { execs, link } = opened;
  let failures = 0;
  interceptFailpoints(async (point) => {
    if (point !== 'before journal exec ending' || failures > 0) return;
    failures += 1;
    throw new Error('the disk is full');
  });
  const { row } = await execs.begin({ ...spec('sleep 60'), timeoutSeconds: 0.01 });
  await waitFor('the failure', async () => failures === 1);
  link.break(); // The agent has closed the channel, too.
  const killed: string[] = [];
  const records = recordOf(row.id, 0);
  await link.open(
    new PlayedGuest((frame) => {
      const { request } = frame;
      if (frame.type === 'signal') killed.push(frame.id);
      if (frame.type === 'list') return [{ type: 'records', request, next: 0, records }];
      if (frame.type === 'follow') return [{ type: 'followed', request, offset: frame.offset }];
      return orderly(frame);
    }),
  );
  await waitFor('the kill', async () => killed.includes(row.id));
  t.like((await execs.read(row.id)).exec, { status: 'running' });
});
