/* Threads for calls on disks, and calls whose request has ended. */
import test from 'ava';
import {
  onBehalfOf,
  onDiskThread,
  poolThreads,
  toItsEnd,
} from '../../../agent/disks/disk-threads.ts';
import { waitFor } from '../../helpers/wait.ts';

const none = undefined;

test.serial(
  'calls that never end leave threads for other accounts, and for the agent',
  async (t) => {
    const hung = Promise.withResolvers<void>();
    let held = 0;
    const calls = Array.from({ length: 20 }, () =>
      onBehalfOf('slow', none, () =>
        onDiskThread(() => {
          held += 1;
          return hung.promise;
        }),
      ),
    );
    for (let count = 0; count < 50; count += 1) {
      t.is(await onBehalfOf('quick', none, () => onDiskThread(async () => count)), count);
    }
    t.true(held > 0 && held < poolThreads);
    hung.resolve();
    await Promise.all(calls);
    t.is(held, 20);
  },
);

test.serial(
  'no call of a request that has ended begins, but for what puts things in order',
  async (t) => {
    const ended = new AbortController();
    const reason = new Error('the caller is gone');
    const begun: string[] = [];
    const hung = Promise.withResolvers<void>();
    const call = (name: string) => () =>
      onDiskThread(async () => {
        begun.push(name);
        await hung.promise;
      });
    const running = onBehalfOf('one', ended.signal, call('running'));
    const others = Array.from({ length: 5 }, () => onBehalfOf('one', none, call('other')));
    const waiting = onBehalfOf('one', ended.signal, call('waiting'));
    const cleaning = onBehalfOf('one', ended.signal, async () => {
      await waitFor('the end of the request', async () => ended.signal.aborted);
      await t.throwsAsync(call('late')(), { message: reason.message });
      await toItsEnd(call('cleaning'));
    });
    ended.abort(reason);
    t.is(await t.throwsAsync(waiting), reason);
    hung.resolve();
    await Promise.all([running, ...others, cleaning]);
    t.deepEqual(new Set(begun), new Set(['running', 'other', 'cleaning']));
  },
);

test.serial('a call that fails gives its thread back', async (t) => {
  const failure = new Error('failed');
  for (let count = 0; count < 50; count += 1) {
    t.is(await t.throwsAsync(onDiskThread(() => Promise.reject(failure))), failure);
  }
  t.is(await onDiskThread(async () => 'served'), 'served');
});
