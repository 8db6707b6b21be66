/*
 * Effects of one account's load on another one's calls: each test has one account take all it can
 * get, and asserts that another account's command is answered meanwhile.
 */
import anyTest, { type TestFn } from 'ava';
import type { ApiClient } from '../helpers/api.ts';
import { createDisk, exec } from '../helpers/disks.ts';
import { grep } from '../helpers/greps.ts';
import { peakMemoryBytes, processesMarked } from '../helpers/host.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';
import { MiB } from '../../shared/units.ts';

const EXEC_SLOTS = 20;
const SLOTS_OF_ONE = 15; // Three quarters, the default of EXEC_SLOTS_PER_ACCOUNT.

interface Context {
  stack: Stack;
  noisy: ApiClient;
  other: ApiClient;
  otherDisk: string;
}
const test = anyTest as TestFn<Context>;

test.before(async (t) => {
  const stack = await Stack.start({ EXEC_SLOTS: String(EXEC_SLOTS) });
  t.context.stack = stack;
  t.context.noisy = await stack.newClient();
  t.context.other = await stack.newClient();
  t.context.otherDisk = (await createDisk(t.context.other)).id;
  await exec(t.context.other, t.context.otherDisk, 'echo x > file');
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

/** Has the noisy account run a command `count` times at once until disposed. */
async function runMany(
  { noisy }: Context,
  count: number,
  command: string,
): Promise<AsyncDisposable> {
  const { id } = await createDisk(noisy);
  const hangUp = new AbortController();
  const calls = Array.from({ length: count }, () =>
    noisy.call('POST', `/api/disks/${id}/exec`, { command }, {}, hangUp.signal),
  );
  return {
    async [Symbol.asyncDispose]() {
      hangUp.abort();
      await Promise.allSettled(calls);
    },
  };
}

test.serial('an account whose commands never end does not keep another from running', async (t) => {
  const { other, otherDisk } = t.context;
  const mark = 'BERTH_MARK=noisy-sleep';
  const sleeping = async (): Promise<number> =>
    (await processesMarked(mark)).filter((line) => / sleep /u.test(line)).length;
  await using _ = await runMany(t.context, EXEC_SLOTS + 2, `export ${mark}; exec sleep 60`);
  await waitFor('the commands', async () => (await sleeping()) >= SLOTS_OF_ONE);
  t.is((await exec(other, otherDisk, 'echo hello')).stdout, 'hello\n');
  t.is((await grep(other, otherDisk, { pattern: 'x' })).stoppedReason, 'completed');
  t.is(await sleeping(), SLOTS_OF_ONE);
});

test.serial('floods of output do not grow the agent, and others are served', async (t) => {
  const { stack, other, otherDisk } = t.context;
  const mark = 'BERTH_MARK=noisy-flood';
  const before = await peakMemoryBytes(stack.agent.pid);
  await using _ = await runMany(t.context, 14, `export ${mark}; exec cat /dev/zero`);
  await waitFor('the commands', async () => {
    const found = await processesMarked(mark);
    return found.filter((line) => / cat /u.test(line)).length >= 14;
  });
  for (let i = 0; i < 3; i += 1) {
    t.is((await exec(other, otherDisk, 'echo hello')).stdout, 'hello\n');
  }
  const long = await exec(other, otherDisk, 'yes | head -c 20M; echo end');
  t.is(long.stdout.length, 16 * MiB);
  t.true(long.stdout.endsWith('y\nend\n'));
  const grown = (await peakMemoryBytes(stack.agent.pid)) - before;
  t.log(`the agent grew by ${Math.round(grown / MiB)} MiB`);
  t.true(grown < 150 * MiB);
});
