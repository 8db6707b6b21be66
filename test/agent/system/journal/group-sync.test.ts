import test from 'ava';
import { GroupSync } from '../../../../agent/system/journal/group-sync.ts';

/** A file whose syncs end when the test says so. */
function heldFile() {
  const syncs: PromiseWithResolvers<void>[] = [];
  const failures: string[] = [];
  const sync = new GroupSync(
    () => {
      const held = Promise.withResolvers<void>();
      syncs.push(held);
      return held.promise;
    },
    ({ message }) => failures.push(message),
  );
  const settled: string[] = [];
  const ask = (name: string): Promise<unknown> =>
    sync.durable().then(
      () => settled.push(name),
      (error: unknown) => settled.push(`${name}: ${String(error)}`),
    );
  return { syncs, failures, settled, ask, refuseIfFailed: () => sync.refuseIfFailed() };
}

const turn = (): Promise<void> =>
  new Promise((resolve) => {
    setImmediate(resolve);
  });

test('who asks while the file is being synced shares the next sync', async (t) => {
  const { syncs, settled, ask } = heldFile();
  const first = ask('first');
  await turn();
  const others = [ask('second'), ask('third')];
  await turn();
  t.is(syncs.length, 1, 'the present sync may have begun before the others wrote');
  syncs[0]?.resolve();
  await first;
  await turn();
  t.deepEqual(settled, ['first']);
  t.is(syncs.length, 2);
  syncs[1]?.resolve();
  await Promise.all(others);
  t.deepEqual(settled, ['first', 'second', 'third']);
  t.is(syncs.length, 2);
});

test('who asks later is not served by a sync of before', async (t) => {
  const { syncs, ask } = heldFile();
  const first = ask('first');
  await turn();
  syncs[0]?.resolve();
  await first;
  const second = ask('second');
  await turn();
  t.is(syncs.length, 2);
  syncs[1]?.resolve();
  await second;
});

test('after a sync that failed nothing counts as durable, and that is told once', async (t) => {
  const { syncs, failures, settled, ask, refuseIfFailed } = heldFile();
  refuseIfFailed();
  const first = ask('first');
  await turn();
  const second = ask('second');
  syncs[0]?.reject(new Error('no storage'));
  await Promise.all([first, second, ask('third')]);
  await ask('fourth');
  t.is(syncs.length, 1);
  t.deepEqual(failures, ['no storage']);
  t.throws(refuseIfFailed, { message: 'no storage' });
  t.deepEqual(
    settled.toSorted(),
    ['first', 'fourth', 'second', 'third'].map((name) => `${name}: Error: no storage`),
  );
});
