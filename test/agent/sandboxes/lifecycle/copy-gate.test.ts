import test from 'ava';
import { CopyGate } from '../../../../agent/sandboxes/lifecycle/copy-gate.ts';
import { waitFor } from '../../../helpers/wait.ts';

const MS_MAX = 10;

test('a copy whose machine runs on is not overdue, and keeps the gate closed', async (t) => {
  const [first, second] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  const gates = [new CopyGate({ isSilent: false }), new CopyGate({ isSilent: false })] as const;
  const overdue: string[] = [];
  const lift = gates[0].hold(first.promise, MS_MAX, () => overdue.push('first'));
  lift();
  // Its deadline comes after that of the first would have come.
  gates[1].hold(second.promise, MS_MAX, () => overdue.push('second'));
  await waitFor('the second to be overdue', async () => overdue.includes('second'));
  t.deepEqual(overdue, ['second']);
  t.not(gates[0].copying, undefined);
  first.resolve();
  second.resolve();
  await gates[0].copying;
  t.is(gates[0].copying, undefined);
});
