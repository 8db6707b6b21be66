import test from 'ava';
import type { CheckoutTarget } from '../../../agent/disks/checkout-target.ts';
import { type CheckoutRequest, Delegations } from '../../../agent/disks/delegations.ts';

const never = new AbortController().signal;

/** Each path has an inode of its own unless one is given. */
const inodes = new Map<string, number>();
const target = (path: string, waitMs = 0, inodeId?: number, moved?: string): CheckoutTarget => {
  const known = inodes.get(path) ?? inodes.size + 100;
  inodes.set(path, known);
  const paths = (): string[] =>
    [path, moved ?? path].map((each) => (each === '' ? '' : `/${each}`));
  return { path, waitMs, inodeId: inodeId ?? known, paths };
};
const request = (
  clientId: string,
  targets: readonly CheckoutTarget[],
  onRevoked: () => void = () => undefined,
): CheckoutRequest => ({ clientId, targets, onRevoked });

const held = (delegations: Delegations): string[] =>
  delegations
    .list()
    .map(
      ({ clientId, path, isPending }) => `${clientId} ${isPending ? 'awaits' : 'holds'} ${path}`,
    );

test('a checkout excludes the path, its parents, and what lies beneath it, and nothing else', async (t) => {
  const delegations = new Delegations();
  await delegations.claim(request('holder', [target('a/b')]), never);
  for (const path of ['', 'a', 'a/b', 'a/b/c', 'a/b/c/d']) {
    const refused = delegations.claim(request('other', [target(path)]), never);
    await t.throwsAsync(refused, { code: 'delegation_conflict' }, path);
  }
  const siblings = ['a/bc', 'a/c', 'b', 'ab'].map((path) => target(path));
  await delegations.claim(request('other', siblings), never);
  delegations.release('holder');
  delegations.release('other');
  t.deepEqual(delegations.list(), []);
});

test('a file is excluded by every name, and where it was moved to, as well as where it was', async (t) => {
  const delegations = new Delegations();
  await delegations.claim(request('holder', [target('a/file', 0, 7, 'b/moved')]), never);
  for (const [path, inodeId] of [
    ['link', 7],
    ['a/file', 8],
    ['b', 9],
    ['b/moved', 8],
  ] as const) {
    const refused = delegations.claim(request('other', [target(path, 0, inodeId)]), never);
    await t.throwsAsync(refused, { code: 'delegation_conflict' }, path);
  }
  await delegations.claim(request('other', [target('b/file', 0, 8)]), never);
  t.deepEqual(held(delegations), ['holder holds a/file', 'other holds b/file']);
});

test('those who wait get it in the order in which they came', async (t) => {
  const delegations = new Delegations();
  await delegations.claim(request('a', [target('dir')]), never);
  const order: string[] = [];
  const waiting = ['b', 'c', 'd'].map(async (clientId) => {
    await delegations.claim(request(clientId, [target('dir/x', 60_000)]), never);
    order.push(clientId);
    delegations.release(clientId);
  });
  t.deepEqual(held(delegations), [
    'a holds dir',
    'b awaits dir/x',
    'c awaits dir/x',
    'd awaits dir/x',
  ]);
  delegations.release('a');
  await Promise.all(waiting);
  t.deepEqual(order, ['b', 'c', 'd']);
});

test('one that waits is not overtaken by a later one, and holds back none that it does not touch', async (t) => {
  const delegations = new Delegations();
  await delegations.claim(request('reader', [target('dir/x')]), never);
  const whole = delegations.claim(request('whole', [target('dir', 60_000)]), never);
  const late = delegations.claim(request('late', [target('dir/y')]), never);
  await t.throwsAsync(late, { code: 'delegation_conflict' });
  await delegations.claim(request('beside', [target('other')]), never);
  delegations.release('reader');
  await whole;
  t.deepEqual(held(delegations), ['whole holds dir', 'beside holds other']);
});

test('all paths of a request are granted at once, so that nobody waits in a circle', async (t) => {
  const delegations = new Delegations();
  const wait = 60_000;
  // By another order, by names that sort otherwise, and by a parent.
  const requests = [
    [target('x', wait, 1), target('y', wait, 2)],
    [target('y', wait, 2), target('x', wait, 1)],
    [target('a-link-to-y', wait, 2), target('x', wait, 1)],
    [target('', wait, 0)],
  ];
  let running = 0;
  const ends = requests.map(async (targets, index) => {
    await delegations.claim(request(`client-${index}`, targets), never);
    running += 1;
    t.is(running, 1);
    await Promise.resolve();
    running -= 1;
    delegations.release(`client-${index}`);
  });
  await Promise.all(ends);
  t.deepEqual(delegations.list(), []);
});

test('without waiting a held path is refused, and the refused client leaves nothing', async (t) => {
  const delegations = new Delegations();
  await delegations.claim(request('a', [target('dir')]), never);
  const free = target('free', 60_000);
  for (const [targets, code] of [
    [[free, target('dir')], 'delegation_conflict'],
    [[free, target('dir', 5)], 'timeout'],
    [[free, target('dir', 60_000), target('dir/x', 5)], 'timeout'],
  ] as const) {
    await t.throwsAsync(delegations.claim(request('b', targets), never), { code });
  }
  t.deepEqual(held(delegations), ['a holds dir']);
});

test('a client may name a path twice, its parent and other paths beside it', async (t) => {
  const delegations = new Delegations();
  const targets = ['dir', 'dir', 'dir/x', 'other'].map((path) => target(path));
  await delegations.claim(request('a', targets), never);
  t.deepEqual(held(delegations), ['a holds dir', 'a holds dir/x', 'a holds other']);
});

test('ending the wait frees the place in the line for those behind', async (t) => {
  const delegations = new Delegations();
  await delegations.claim(request('a', [target('dir')]), never);
  const ended = new AbortController();
  const leaving = delegations.claim(request('b', [target('', 60_000)]), ended.signal);
  const behind = delegations.claim(request('c', [target('other', 60_000)]), never);
  ended.abort(new Error('ended'));
  await t.throwsAsync(leaving, { message: 'ended' });
  await behind;
  t.deepEqual(held(delegations), ['a holds dir', 'c holds other']);
});

test('revoking tells the holder; a client that waits stops waiting', async (t) => {
  const delegations = new Delegations();
  let told = 0;
  const tell = (): void => {
    told += 1;
  };
  await delegations.claim(request('a', [target('dir', 0, 7)], tell), never);
  const waiting = delegations.claim(request('b', [target('dir', 60_000, 7)]), never);
  t.true(delegations.revoke('b', 7));
  await t.throwsAsync(waiting, { code: 'delegation_revoked' });
  t.true(delegations.revoke('a', 7));
  t.is(told, 1);
  t.false(delegations.revoke('a', 8));
  t.false(delegations.revoke('c', 7));
});
