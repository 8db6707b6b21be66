import test from 'ava';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { text } from 'node:stream/consumers';
import {
  repeatInBackground,
  repeatUntilStopped,
  reportBackgroundFailures,
  runInBackground,
} from '../../shared/background.ts';
import { waitFor } from '../helpers/wait.ts';

test('a task that throws or rejects is reported by name, and a repeated task runs again', async (t) => {
  const reported: string[] = [];
  reportBackgroundFailures((task, error) => reported.push(`${task}: ${error.message}`));
  runInBackground('thing.throw', () => {
    throw new Error('thrown');
  });
  runInBackground('thing.reject', () => Promise.reject(new Error('rejected')));
  let turns = 0;
  const stop = repeatInBackground('thing.repeat', 1, async () => {
    turns += 1;
    await Promise.resolve();
    if (turns < 3) throw new Error(`turn ${turns}`);
  });
  await waitFor('a third turn', async () => turns >= 3);
  stop();
  t.deepEqual(reported.toSorted(), [
    'thing.reject: rejected',
    'thing.repeat: turn 1',
    'thing.repeat: turn 2',
    'thing.throw: thrown',
  ]);
});

test('a repetition that is stopped ends with the run under way', async (t) => {
  const { promise, resolve } = Promise.withResolvers<void>();
  let hasEnded = false;
  const stop = repeatUntilStopped('thing.repeat', 1, async () => {
    await promise;
    hasEnded = true;
  });
  const stopped = stop().then(() => hasEnded);
  resolve();
  t.true(await stopped);
});

const PROGRAM = `
  import { createLogger } from './shared/log.ts';
  import { createMetrics } from './shared/metrics.ts';
  import { ownProcessFaults } from './shared/process-faults.ts';
  const metrics = createMetrics('test');
  ownProcessFaults(createLogger('test'), metrics);
  Promise.reject(new Error('nobody listens'));
  setTimeout(async () => {
    console.error(await metrics.getSingleMetricAsString('berth_unhandled_rejections_total'));
    setTimeout(() => { throw new Error('caught by nobody'); }, 50);
    throw new Error('half-way');
  }, 50);
  setTimeout(() => console.error('ran on'), 60_000);
`;

test('an unhandled rejection is counted and survived; an uncaught exception is logged and ends the process', async (t) => {
  const child = spawn(process.execPath, ['--input-type=module', '-e', PROGRAM], {
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const [log, told, [code]] = await Promise.all([
    text(child.stdout),
    text(child.stderr),
    once(child, 'exit') as Promise<[number]>,
  ]);
  t.is(code, 1);
  const events = log
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as { msg: string; err: { message: string } });
  t.deepEqual(
    events.map(({ msg, err }) => `${msg}: ${err.message}`),
    [
      'process:unhandledRejection: nobody listens',
      'process:unhandledRejection: half-way',
      'process:uncaughtException: caught by nobody',
    ],
  );
  t.regex(told, /berth_unhandled_rejections_total\{.*\} 1/u);
  t.notRegex(told, /ran on/u);
});
