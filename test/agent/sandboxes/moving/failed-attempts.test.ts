/* Attempts that fail are repeated after growing pauses, and given up at last. */
import test from 'ava';
import { FailedAttempts } from '../../../../agent/sandboxes/moving/failed-attempts.ts';
import { waitFor } from '../../../helpers/wait.ts';

test('a failure is due again after its pause, and a forgotten one is not', async (t) => {
  const failed = new FailedAttempts({ min: 20, max: 40 }, 5);
  t.true(failed.add('one'));
  t.true(failed.add('two'));
  t.deepEqual([failed.size, failed.due], [2, []]);
  failed.forget('two');
  await waitFor('the pause to be over', async () => failed.due.length > 0);
  t.deepEqual([failed.ids, failed.due], [['one'], ['one']]);
});

test('the last attempt ends the repetition, and the next failure is a first one', (t) => {
  const failed = new FailedAttempts({ min: 1, max: 1 }, 3);
  t.deepEqual([failed.add('one'), failed.add('one'), failed.add('one')], [true, true, false]);
  t.is(failed.size, 0);
  t.true(failed.add('one'));
});
