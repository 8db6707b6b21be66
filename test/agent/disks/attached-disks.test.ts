/* How the disks that a host may have attached are shared between accounts. */
import test from 'ava';
import { AttachedDisks, type IdleDisk } from '../../../agent/disks/attached-disks.ts';

const REFUSED = { code: 'no_capacity' };

/** A host that may have so many disks attached, three quarters of them of one account. */
function openScene(count: number) {
  const attachedDisks = new AttachedDisks({ count, perAccountMax: (count * 3) / 4 });
  const asked: string[] = [];
  const detached: string[] = [];
  /** A disk that is attached, and idle at once. */
  const leaveIdle = (accountId: string, name: string, ends = Promise.resolve(true)): IdleDisk => {
    const disk = {
      accountId,
      detachIdle: async () => {
        asked.push(name);
        if (!(await ends)) {
          attachedDisks.markIdle(disk); // Like a disk on a bucket that lacks something.
          return false;
        }
        detached.push(name);
        attachedDisks.release(accountId);
        return true;
      },
    };
    attachedDisks.markIdle(disk);
    return disk;
  };
  const takeAll = async (accountId: string): Promise<number> => {
    for (let taken = 0; ; taken += 1) {
      try {
        await attachedDisks.take(accountId);
      } catch {
        return taken;
      }
    }
  };
  return { attachedDisks, asked, detached, leaveIdle, takeAll };
}

test('disks in use are shared: an account leaves some for the next one', async (t) => {
  const { attachedDisks, takeAll } = openScene(16);
  t.is(await takeAll('a'), 12);
  t.is(await takeAll('b'), 3);
  t.is(await takeAll('c'), 1);
  await t.throwsAsync(attachedDisks.take('d'), REFUSED);
  attachedDisks.release('a');
  await t.notThrowsAsync(attachedDisks.take('d'), 'one that was refused has taken nothing');
});

test('an account that walks over its disks is never refused', async (t) => {
  const { attachedDisks, detached, leaveIdle } = openScene(4);
  for (let name = 0; name < 10; name += 1) {
    await attachedDisks.take('a');
    leaveIdle('a', String(name));
  }
  t.deepEqual(detached, ['0', '1', '2', '3', '4', '5', '6'], 'the longest idle ones');
});

test('an account without an idle disk gets the place of the account that has most', async (t) => {
  const { attachedDisks, detached, leaveIdle, takeAll } = openScene(16);
  await takeAll('a');
  await takeAll('b');
  await takeAll('c');
  leaveIdle('b', 'of b');
  leaveIdle('a', 'of a');
  await attachedDisks.take('d');
  t.deepEqual(detached, ['of a']);
  await t.throwsAsync(attachedDisks.take('a'), REFUSED, 'b has fewer');
  t.deepEqual(detached, ['of a']);
  await attachedDisks.take('b');
  t.deepEqual(detached, ['of a', 'of b'], 'its own');
});

test('a disk that is used again, or has to stay, is left', async (t) => {
  const { attachedDisks, asked, detached, leaveIdle, takeAll } = openScene(4);
  await takeAll('a');
  const used = leaveIdle('a', 'used');
  leaveIdle('a', 'stays', Promise.resolve(false));
  leaveIdle('a', 'next');
  attachedDisks.markUsed(used);
  await attachedDisks.take('a');
  t.deepEqual(detached, ['next']);
  await t.throwsAsync(attachedDisks.take('a'), REFUSED);
  t.deepEqual(asked, ['stays', 'next', 'stays'], 'once each time');
});

test('the place of an idle disk is for the account that it was detached for', async (t) => {
  const { attachedDisks, takeAll } = openScene(4);
  await takeAll('a');
  await takeAll('b');
  attachedDisks.markIdle({
    accountId: 'a',
    detachIdle: async () => {
      await t.throwsAsync(attachedDisks.take('d'), REFUSED, 'nobody else takes the disk');
      attachedDisks.release('a');
      await t.throwsAsync(attachedDisks.take('d'), REFUSED, 'nor its place');
      return true;
    },
  });
  await attachedDisks.take('c');
  t.plan(2);
});

test('a disk that is attached already is counted, and never refused', async (t) => {
  const { attachedDisks, takeAll } = openScene(4);
  for (let count = 0; count < 6; count += 1) attachedDisks.add('a');
  t.is(await takeAll('b'), 0);
  for (let count = 0; count < 4; count += 1) attachedDisks.release('a');
  t.is(await takeAll('b'), 1);
});
