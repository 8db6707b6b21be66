import test from 'ava';
import { Delegations } from '../../../agent/disks/delegations.ts';

const never = new AbortController().signal;
const client = (clientId: string, inodeId = 7, onRevoked: () => void = () => undefined) => ({
  clientId,
  inodeId,
  path: 'dir',
  onRevoked,
});

test('one client holds an inode; the next one waits and gets it on release', async (t) => {
  const delegations = new Delegations();
  await delegations.claim(client('a'), 0, never);
  const waiting = delegations.claim(client('b'), 60_000, never);
  t.deepEqual(
    delegations.list().map(({ clientId, isPending }) => ({ clientId, isPending })),
    [
      { clientId: 'a', isPending: false },
      { clientId: 'b', isPending: true },
    ],
  );
  delegations.release('a');
  await waiting;
  t.deepEqual(
    delegations.list().map(({ clientId, isPending }) => ({ clientId, isPending })),
    [{ clientId: 'b', isPending: false }],
  );
});

test('without waiting a held inode is refused, and the refused client leaves nothing', async (t) => {
  const delegations = new Delegations();
  await delegations.claim(client('a'), 0, never);
  await t.throwsAsync(delegations.claim(client('b'), 0, never), { code: 'delegation_conflict' });
  await t.throwsAsync(delegations.claim(client('b'), 5, never), { code: 'timeout' });
  delegations.release('a');
  t.deepEqual(delegations.list(), []);
});

test('a client may claim what it holds again, and other inodes beside it', async (t) => {
  const delegations = new Delegations();
  await delegations.claim(client('a', 1), 0, never);
  await delegations.claim(client('a', 1), 0, never);
  await delegations.claim(client('a', 2), 0, never);
  t.is(delegations.list().length, 2);
  delegations.release('a');
  t.deepEqual(delegations.list(), []);
});

test('ending the wait frees the place in the line for those behind', async (t) => {
  const delegations = new Delegations();
  await delegations.claim(client('a'), 0, never);
  const ended = new AbortController();
  const leaving = delegations.claim(client('b'), 60_000, ended.signal);
  const behind = delegations.claim(client('c'), 60_000, never);
  ended.abort();
  await t.throwsAsync(leaving);
  delegations.release('a');
  await behind;
  t.deepEqual(
    delegations.list().map(({ clientId }) => clientId),
    ['c'],
  );
});

test('revoking tells the holder; a client that waits stops waiting', async (t) => {
  const delegations = new Delegations();
  let told = 0;
  await delegations.claim(
    client('a', 7, () => {
      told += 1;
    }),
    0,
    never,
  );
  const waiting = delegations.claim(client('b'), 60_000, never);
  t.true(delegations.revoke('b', 7));
  await t.throwsAsync(waiting, { code: 'delegation_revoked' });
  t.true(delegations.revoke('a', 7));
  t.is(told, 1);
  t.false(delegations.revoke('a', 8));
  t.false(delegations.revoke('c', 7));
});
